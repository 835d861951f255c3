# shellcheck shell=bash
# Sourced by ci/vm/run: starting a guest, knowing that it got somewhere, and ending it.

share() { # share TAG PATH OPTIONS
	printf '%s' "local,mount_tag=$1,path=$(quoted "$2"),security_model=none,multidevs=remap$3"
}

# start_guest starts qemu in the background and sets qemu to its process id.
start_guest() {
	local clock='' khz
	# All emulated processors have the host's TSC, but the kernel takes them for unsynchronized, as the emulation does not
	# call it invariant. Each look at the clock would be a system call that reads an emulated HPET, and take a third of
	# the guest's processor time. On a busy host no tick of the timer may come while the kernel counts them to see whether
	# the timer works, and it panics.
	# What it would find for the frequency of the TSC may be far off, too, and its clock then runs many times too fast. So
	# it is told: twice its MHz are the host's bogomips.
	if [[ " ${machine[*]} " == *" tcg,"* ]]; then
		clock=' tsc=reliable no_timer_check'
		khz=$(awk '/^bogomips/ { printf "%d", $3 * 500; exit }' /proc/cpuinfo)
		[ -z "$khz" ] || clock+=" tsc_early_khz=$khz"
	fi
	rm -f "$control/started" "$work/console"
	# The watchdogs are off: an emulated processor that waits for a busy host is no fault of the guest's kernel.
	# It ends with this script, also if that is killed and can't end it.
	setpriv --pdeathsig KILL qemu-system-x86_64 "${machine[@]}" -m "$memory" -smp "$cpus" \
		-nodefaults -no-user-config -display none -no-reboot "${network[@]}" \
		-kernel "$image/vmlinux" -initrd "$image/initramfs" \
		-append "console=ttyS0 panic=-1 nowatchdog rcupdate.rcu_cpu_stall_suppress=1 mitigations=off$clock vm_siw=$siw vm_rxe=$rxe $boot" \
		-serial "file:$work/console" \
		-virtfs "$(share host / ,readonly=on)" \
		-virtfs "$(share control "$control" "")" \
		-virtfs "$(share out "$out" "")" \
		-device virtio-serial-pci \
		-chardev "file,id=stdout,path=$(quoted "$work/stdout")" -device virtserialport,chardev=stdout,name=stdout \
		-chardev "file,id=stderr,path=$(quoted "$work/stderr")" -device virtserialport,chardev=stderr,name=stderr \
		</dev/null >"$work/qemu" 2>&1 7>&- 8>&- &
	qemu=$!
}

# await_command SECONDS waits until the guest is about to run the command, or has ended. It fails if neither happens in
# time.
await_command() {
	local deadline=$((SECONDS + $1))
	until [ -e "$control/started" ] || ! kill -0 "$qemu" 2>/dev/null; do
		[ "$SECONDS" -le "$deadline" ] || return 1 # SECONDS may be a second more within an instant
		sleep 0.2
	done
}

# end_guest ends qemu, which a guest whose processors all hang can keep from leaving by itself.
end_guest() {
	kill "$qemu" 2>/dev/null || true
	for _ in {1..50}; do
		kill -0 "$qemu" 2>/dev/null || break
		sleep 0.2
	done
	kill -9 "$qemu" 2>/dev/null || true
	wait "$qemu" 2>/dev/null || true
}

# show_hang ATTEMPT says how far a guest came that did not get to the command. On a busy host, qemu may not even have
# made its console.
show_hang() {
	say "boot $1 of 3 took more than $boot_limit s; the end of the guest's console:"
	[ -e "$work/console" ] || say "qemu had not opened it yet"
	{ tail -n 25 "$work/console" "$work/qemu" 2>/dev/null || true; } | sed 's/^/  | /' >&2
}
