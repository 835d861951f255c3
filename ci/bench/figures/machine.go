package figures

import (
	"os"
	"runtime"
	"strings"
)

// cpuModel is what the kernel calls the processor.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown" // arm64 has no name there
}

// loadAverage is how many processes wanted to run in the last 1, 5 and 15 minutes.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// Machine describes the machine, as it is now, as far as figures depend on it.
func Machine() map[string]any {
	m := map[string]any{"CPUs": runtime.NumCPU(), "CPU model": cpuModel(), "Go": runtime.Version()}
	if load := loadAverage(); load != "" {
		m["load average before"] = load
	}
	return m
}
