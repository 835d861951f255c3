# shellcheck shell=bash
# Sourced by ci/vm/run: what the end of a guest means.

# Lines of the kernel's log that no run may cause. Lockdep's begin with "possible", "inconsistent" or "suspicious".
splats='WARNING:|BUG:|kernel BUG at|Oops|general protection fault|Call Trace:|refcount_t:|INFO: task .* blocked for'
splats+='|INFO: possible|possible (circular|recursive) locking|inconsistent lock state|suspicious RCU|UBSAN|KASAN'
splats+='|unregister_netdevice: waiting|Kernel panic'

# show FILE prints the log around the first splat, the whole of a short log.
show_splat() {
	grep -nE "$splats" "$1" | head -n 1 | cut -d: -f1 | {
		read -r line
		sed -n "$((line > 5 ? line - 5 : 1)),$((line + 80))p" "$1"
	} | sed 's/^/  | /' >&2
}

# verdict WORK QEMU-STATUS LIMIT SECONDS ends the script with the status that ci/vm/run documents.
verdict() {
	local work=$1 qemu=$2 limit=$3 seconds=$4 control=$1/control status log
	if [ -s "$control/status" ]; then
		status=$(cat "$control/status")
		if grep -qE "$splats" "$control/dmesg"; then
			say "the kernel complained while the command ran:"
			show_splat "$control/dmesg"
			die 120 "failed because of the kernel's log above; the command's own exit status was $status"
		fi
		exit "$status"
	fi

	# No status came back. What the console shows may tell why.
	log=$work/console
	[ -e "$log" ] || : >"$log"
	if grep -qE "$splats" "$log"; then
		say "the kernel complained:"
		show_splat "$log"
	elif [ "$qemu" -ne 124 ] || [ -s "$control/failed" ]; then
		tail -n 30 "$log" "$work/qemu" | sed 's/^/  | /' >&2
	fi
	if [ -s "$control/failed" ]; then
		[ ! -s "$control/dmesg" ] || tail -n 20 "$control/dmesg" | sed 's/^/  | /' >&2
		die 121 "the guest could not be set up: $(cat "$control/failed")"
	fi
	[ "$qemu" -ne 124 ] || die 124 "the time limit of $limit s passed"
	die 121 "the guest ended after $seconds s without the command's exit status (qemu's was $qemu)"
}
