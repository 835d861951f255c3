package figures

import (
	"os"
	"runtime"
	"strings"
	"time"
)

// cpuModel returns the kernel's name of the processor.
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

// Machine describes the machine as far as figures depend on it.
func Machine() map[string]any {
	return map[string]any{
		"CPUs": runtime.NumCPU(), "CPU model": cpuModel(), "Go": runtime.Version(),
		"date": time.Now().UTC().Format(time.DateOnly),
	}
}
