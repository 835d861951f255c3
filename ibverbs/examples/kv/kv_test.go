package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--timeout", "1m") }

// writes is how clients write unless a flag says otherwise.
func writes() string {
	if exampletest.Kernel() {
		return "the server" // siw has no atomic operations
	}
	return "compare-and-swap"
}

func TestKV(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	put := func(by, key, value string, flags ...string) {
		t.Helper()
		exampletest.MustRun(t, fmt.Sprintf("put %s by %s\n", key, by), append(flags, server.Addr, "put", key, value)...)
	}
	get := func(key, value string) {
		t.Helper()
		exampletest.MustRun(t, value+"\n", server.Addr, "get", key)
	}
	put(writes(), "colour", "green")
	get("colour", "green")
	put("the server", "colour", "blue", "--atomics=false")
	get("colour", "blue")
	put(writes(), "colour", "red")
	put(writes(), "shape", "")
	get("colour", "red")
	get("shape", "")
}

// TestKVFaults checks what a client refuses, and what a server answers with an error.
func TestKVFaults(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"size: no such key", []string{server.Addr, "get", "size"}},
		{"there is room for 118", []string{server.Addr, "put", "size", strings.Repeat("x", maxData)}},
		{"there is room for 118", []string{"--atomics=false", server.Addr, "put", "size", strings.Repeat("x", maxData)}},
		{"kv: 3 arguments after the flags: ", []string{server.Addr, "put", "size"}},
	} {
		if stdout, stderr, err := exampletest.Run(t, c.args...); err == nil || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: %v, prints %q and %q, want an error with %q", c.args, err, stdout, stderr, c.want)
		}
	}
}

// TestKVFull fills a table of two slots.
func TestKVFull(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0", "--slots", "2")
	for _, key := range []string{"a", "b"} {
		exampletest.MustRun(t, fmt.Sprintf("put %s by %s\n", key, writes()), server.Addr, "put", key, "1")
	}
	if _, stderr, err := exampletest.Run(t, server.Addr, "put", "c", "1"); err == nil || !strings.Contains(stderr, errFull.Error()) {
		t.Errorf("%v, prints %q, want %v", err, stderr, errFull)
	}
	exampletest.MustRun(t, "1\n", server.Addr, "get", "b")
}

// connect connects this process to a server.
func connect(ctx context.Context, t *testing.T, address string) *client {
	t.Helper()
	vctx, err := open(ctx, exampletest.Provider(), address, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vctx.Close() })
	c, err := dial(ctx, vctx, address, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestKVLockOfTheDead lets a client die as the owner of a slot. Its key keeps the old value,
// and others can write it.
func TestKVLockOfTheDead(t *testing.T) {
	if exampletest.Kernel() {
		t.Skip("clients lock with atomic operations")
	}
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	c := connect(ctx, t, server.Addr)
	if err := c.put(ctx, "colour", "green"); err != nil {
		t.Fatal(err)
	}
	i, s, err := c.find(ctx, "colour")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := c.swap(ctx, i, s.word, s.word|c.owner); !ok || err != nil {
		t.Fatal(ok, err)
	}
	exampletest.MustRun(t, "green\n", server.Addr, "get", "colour")
	if _, stderr, err := exampletest.Run(t, "--timeout", "300ms", server.Addr, "put", "colour", "red"); err == nil {
		t.Errorf("a slot that is locked was written: %s", stderr)
	}
	if err := c.conn.Close(); err != nil {
		t.Fatal(err)
	}
	exampletest.MustRun(t, "put colour by compare-and-swap\n", server.Addr, "put", "colour", "red")
	exampletest.MustRun(t, "red\n", server.Addr, "get", "colour")
}

// TestKVManyWriters lets clients write few keys at the same time and read them: each value
// is one that was written for its key.
func TestKVManyWriters(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0", "--slots", "4")
	var wg sync.WaitGroup
	for n := range 4 {
		c := connect(ctx, t, server.Addr)
		put := c.put
		if !c.atomics {
			put = c.ask
		}
		wg.Go(func() {
			for range 100 {
				key := string(rune('a' + rand.N(3)))
				if err := put(ctx, key, strings.Repeat(key, 1+rand.N(100))); err != nil {
					t.Errorf("client %d: %v", n, err)
					return
				}
				value, err := c.get(ctx, key)
				if err != nil || value != strings.Repeat(key, len(value)) || value == "" {
					t.Errorf("client %d: %v, %s is %q", n, err, key, value)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestDecodeTorn changes each byte of a body.
func TestDecodeTorn(t *testing.T) {
	b := make([]byte, slotSize)
	binary.NativeEndian.PutUint64(b, 1<<16)
	if _, err := decode(b); !errors.Is(err, errTorn) {
		t.Errorf("a body without a CRC: %v, want %v", err, errTorn)
	}
	body := encode(1, "key", "value")
	copy(b[wordSize+bodySize:], body)
	if s, err := decode(b); err != nil || s.key != "key" || s.value != "value" {
		t.Errorf("a whole body: %+v, %v", s, err)
	}
	for i := range body {
		at := wordSize + bodySize + i
		b[at] ^= 0x40
		if s, err := decode(b); !errors.Is(err, errTorn) {
			t.Errorf("byte %d is wrong: %+v, %v, want %v", i, s, err, errTorn)
		}
		b[at] ^= 0x40
	}
	binary.NativeEndian.PutUint64(b, 3<<16)
	if s, err := decode(b); !errors.Is(err, errTorn) {
		t.Errorf("the body of version 1 in version 3: %+v, %v, want %v", s, err, errTorn)
	}
}
