# shellcheck shell=bash
# Sourced by ci/vm/run: what the end of a guest means.

# Lines of the kernel's log that no run may cause. Lockdep's begin with "possible", "inconsistent" or "suspicious". A
# program's own "general protection fault ip:" is none: perftest ends so when it is refused.
splats='WARNING:|BUG:|kernel BUG at|Oops|general protection fault[,:]|Call Trace:|refcount_t:|INFO: task .* blocked for'
splats+='|INFO: possible|possible (circular|recursive) locking|inconsistent lock state|suspicious RCU|UBSAN|KASAN'
splats+='|unregister_netdevice: waiting|Kernel panic'

# show_splat FILE prints the log from shortly before its first splat on.
show_splat() {
	grep -m 1 -nE "$splats" "$1" | cut -d: -f1 | {
		read -r line
		sed -n "$((line > 5 ? line - 5 : 1)),$((line + 80))p" "$1"
	} | sed 's/^/  | /' >&2
}

# verdict WORK QEMU-STATUS LIMIT ends the script with the status that ci/vm/run documents.
verdict() {
	local work=$1 qemu=$2 limit=$3 control=$1/control status
	if [ -s "$control/status" ]; then
		status=$(cat "$control/status")
		if grep -qE "$splats" "$control/dmesg"; then
			show_splat "$control/dmesg"
			die 120 "failed: the kernel complained (above); the command's own exit status was $status"
		fi
		exit "$status"
	fi

	# No status came back. What the guest managed to log may say why.
	if [ -s "$control/failed" ]; then
		{ tail -n 20 "$control/dmesg" || true; } | sed 's/^/  | /' >&2
		die 121 "the guest could not be set up: $(cat "$control/failed")"
	fi
	[ -e "$work/console" ] || : >"$work/console"
	if grep -qE "$splats" "$work/console"; then
		show_splat "$work/console"
		[ "$qemu" -eq 124 ] || die 120 "failed: the kernel complained (above), and the guest ended with it"
		die 124 "the time limit of $limit s passed; the kernel had complained (above)"
	fi
	[ "$qemu" -ne 124 ] || die 124 "the time limit of $limit s passed"
	tail -n 30 "$work/console" "$work/qemu" | sed 's/^/  | /' >&2
	die 121 "the guest ended without an exit status of the command; qemu's was $qemu"
}
