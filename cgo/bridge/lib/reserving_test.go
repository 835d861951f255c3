//go:build linux && cgo

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReserving: what the engine and other threads do at the moment when a program unmaps memory of
// a region. The program includes faults.c, and stops it there.
func TestReserving(t *testing.T) {
	program := filepath.Join(t.TempDir(), "reserving")
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-o", program, "testdata/reserving.c",
		"-ldl").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
