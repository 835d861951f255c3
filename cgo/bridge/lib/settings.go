//go:build linux && cgo

package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/bridge/recording"
	"github.com/govs-rdma/govs/provider/engine"
)

// settings are what govs-verbs-test exec passes in the environment.
type settings struct {
	engine    engine.Options
	addresses []netip.Addr // of the device; none means all of the machine
	trace     string       // a file, or - for the standard error; "" for none
	record    string       // a file, or "" for none

	noOpeningWrite bool
}

// settingsFrom reads the environment.
func settingsFrom(getenv func(string) string) (*settings, error) {
	s := &settings{trace: getenv("GOVS_BRIDGE_TRACE"),
		record: getenv("GOVS_BRIDGE_RECORD")}
	for name, to := range map[string]*bool{
		"GOVS_BRIDGE_P2P":        &s.engine.PeerToPeer,
		"GOVS_BRIDGE_EXTENSIONS": &s.engine.Extensions,

		"GOVS_BRIDGE_NO_OPENING_WRITE": &s.noOpeningWrite,
	} {
		value := getenv(name)
		if value == "" {
			continue
		}
		var err error
		if *to, err = strconv.ParseBool(value); err != nil {
			return nil, fmt.Errorf("%s is %q, not 0 or 1", name, value)
		}
	}
	switch crc := getenv("GOVS_BRIDGE_CRC"); crc {
	case "", "preferred":
	case "off":
		s.engine.CRC = engine.CRCOff
	case "required":
		s.engine.CRC = engine.CRCRequired
	default:
		return nil, fmt.Errorf("GOVS_BRIDGE_CRC is %q, not preferred, off or required", crc)
	}
	for _, text := range strings.Split(getenv("GOVS_BRIDGE_ADDRESSES"), ",") {
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("GOVS_BRIDGE_ADDRESSES: %w", err)
		}
		s.addresses = append(s.addresses, addr)
	}
	s.engine.TCP.CongestionControl = getenv("GOVS_BRIDGE_CONGESTION")
	if getenv("GOVS_BRIDGE_LOG") != "" {
		s.engine.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return s, nil
}

func (s *settings) provider() provider.Provider { return engine.New(&s.engine) }

func (s *settings) bridge() *bridge.Options {
	opts := &bridge.Options{Addresses: s.addresses, NoOpeningWrite: s.noOpeningWrite}
	switch s.trace {
	case "":
	case "-":
		opts.Trace = tracer(os.Stderr)
	default:
		if f := openOutput("--output", s.trace); f != nil {
			opts.Trace = tracer(f)
		}
	}
	return opts
}

// recorder returns the recorder for commands, or nil if they are not recorded.
func (s *settings) recorder() *recorder {
	if s.record == "" {
		return nil
	}
	f := openOutput("--record", s.record)
	if f == nil {
		return nil
	}
	return &recorder{to: recording.NewWriter(f)}
}

// openOutput opens a file of an option for appending, because processes that the program starts
// write to the same file. It marks the descriptor as the library's, so the program cannot close it
// and reuse its number. If the file cannot be opened, openOutput prints the reason and returns nil.
func openOutput(option, file string) *os.File {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		fmt.Fprintf(os.Stderr, "govs-verbs-test exec: %s: %v\n", option, err)
		return nil
	}
	self.Own(int(f.Fd()), true)
	return f
}
