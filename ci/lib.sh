# shellcheck shell=bash
# Sourced by the scripts below ci/: how they tell progress and how they fail.
#
# Everything told goes to stderr as one plain line per step, so that a log without a terminal reads the same as a
# screen, and so that stdout stays with the command that a script runs.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die STATUS MESSAGE... ends the script. 2 is wrong usage, or a machine that cannot do what was asked.
die() {
	local status=$1
	shift
	say "$*"
	exit "$status"
}

# step TITLE COMMAND... runs one long step with its output in a log, and prints one line with the time it took.
# The log is shown only when the step fails. Do not write `step ... ||` around a function of several commands: bash
# switches errexit off inside it, and a failure in its middle would go unnoticed.
step() {
	local title=$1 log start=$SECONDS status
	shift
	log=$(mktemp)
	set +e
	(
		set -e
		"$@"
	) </dev/null >"$log" 2>&1
	status=$?
	set -e
	if [ "$status" -ne 0 ]; then
		say "$title: FAILED after $((SECONDS - start)) s, status $status"
		tail -n 60 "$log" | sed 's/^/  | /' >&2
	else
		say "$title: $((SECONDS - start)) s"
	fi
	rm -f "$log"
	return "$status"
}
