package main

import "testing"

func TestSourceRelease(t *testing.T) {
	for _, tc := range []struct{ r, v, want string }{
		{"6.1.0-50-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-06-19)", "6.1.176"},
		{"6.12.117+deb12-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1~deb12u1 (2026-11-01)", "6.12.117"},
		{"6.18.44-generic", "#1 SMP PREEMPT_DYNAMIC", "6.18.44"},
		{"next", "#1 SMP", ""},
	} {
		if got := sourceRelease(tc.r, tc.v); got != tc.want {
			t.Errorf("uname -r %q, uname -v %q: release %q, want %q", tc.r, tc.v, got, tc.want)
		}
	}
}
