# shellcheck shell=bash
# Sourced by ci/vm/run: which accelerator qemu uses.

# choose_accelerator MODE IMAGE WORK prints qemu's options. MODE is tcg, kvm or auto.
#
# That /dev/kvm is there proves nothing: on some machines a guest under kvm never leaves the BIOS and burns a core. So
# kvm is used only after a trial boot of the same kernel, which ends itself within seconds, or is ended. What it showed
# holds until the host boots again.
choose_accelerator() {
	local mode=$1 image=$2 work=$3 answer works
	# The emulation executes rep movsb octet by octet. With ERMS kernel and Go copy and clear memory that way: four times
	# as slow as without it (clearing memory: 0.54 against 2.2 GB/s), and most of the time of a guest that moves data.
	# Of AVX every octet is emulated, too, where libc and Go copy, compare and search with it; SSE takes a fifth of the
	# guest's processor time less. Saving the registers of one task for another, and five levels of page tables, are
	# slower than what is there without them.
	local tcg='-accel tcg,thread=multi -cpu max,-erms,-fsrm,-avx,-avx2,-f16c,-fma,-vaes,-xsave,-la57' kvm='-accel kvm -cpu host'
	case $mode in
	tcg) echo "$tcg" && return ;;
	kvm | auto) ;;
	*) die 2 "GOVS_VM_ACCEL is tcg, kvm or auto, not $mode" ;;
	esac
	answer=${image%/*}/kvm-$(cat /proc/sys/kernel/random/boot_id)
	if [ -s "$answer" ]; then
		works=$(cat "$answer")
	else
		if kvm_boots "$image" "$work"; then works=yes; else works=no; fi
		remember "$answer" "$works"
	fi
	if [ "$works" = yes ]; then
		echo "$kvm"
	elif [ "$mode" = auto ]; then
		say "kvm does not work here, taking the emulation"
		echo "$tcg"
	else
		die 2 "kvm does not work here (a trial boot failed); GOVS_VM_ACCEL=tcg emulates"
	fi
}

kvm_boots() {
	[ -w /dev/kvm ] || return 1
	timeout -k 2 15 qemu-system-x86_64 -accel kvm -cpu host -m 512 \
		-nodefaults -no-user-config -display none -no-reboot -net none \
		-kernel "$1/vmlinux" -initrd "$1/initramfs" -append 'panic=-1 quiet vm_probe=yes' \
		</dev/null >"$2/probe" 2>&1
}
