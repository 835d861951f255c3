# shellcheck shell=bash
# Sourced by the scripts below ci/: how they report progress and how they fail.
#
# All messages go to stderr as one plain line per step, so that a log without a terminal reads the same as a
# screen, and so that stdout stays with the command that a script runs.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die STATUS MESSAGE... ends the script. 2 is wrong usage, or a machine that cannot do what was asked.
die() {
	local status=$1
	shift
	say "$*"
	exit "$status"
}

# remember FILE LINE writes a file of the cache, whole or not at all. Where that can't be written to, the next run finds
# out again what the line says.
remember() {
	{ echo "$2" >"$1.$$" && mv "$1.$$" "$1"; } 2>/dev/null || rm -f "$1.$$"
}

# step TITLE COMMAND... runs one long step with its output in a log, and prints one line with the time it took.
# The log is shown only when the step fails: the lines that name failures, and its end. $GOVS_TIMINGS, if set, is a file
# that gets a line with the time, the processor time and the title; $GOVS_FAILURES one that gets what failed, in a few
# lines. Do not write `step ... ||` around a function of several commands: bash switches errexit off inside it, and a
# failure in its middle would go unnoticed.
step() {
	local title=$1 log start=$SECONDS status before=$- cpu
	shift
	log=$(mktemp)
	times >"$log"
	cpu=$(processor_time "$log")
	set +e
	(
		set -e
		"$@"
	) </dev/null >"$log" 2>&1
	status=$?
	[[ $before != *e* ]] || set -e
	if [ "$status" -ne 0 ]; then
		say "$title: FAILED after $((SECONDS - start)) s, status $status"
		blamed "$log" 40 | sed 's/^/  > /' >&2
		tail -n 150 "$log" | sed 's/^/  | /' >&2
		if [ -n "${GOVS_FAILURES-}" ]; then
			{
				printf '%s: status %s\n' "$title" "$status"
				blamed "$log" 6 | middle 400 | sed 's/^/  /'
			} >>"$GOVS_FAILURES"
		fi
	else
		say "$title: $((SECONDS - start)) s"
	fi
	if [ -n "${GOVS_TIMINGS-}" ]; then
		times >"$log"
		printf '%5d s %5d s  %s\n' $((SECONDS - start)) $(($(processor_time "$log") - cpu)) "$title" >>"$GOVS_TIMINGS"
	fi
	rm -f "$log"
	return "$status"
}

# processor_time FILE prints the seconds of processor time that the children had, from what the builtin times wrote.
processor_time() { awk -F '[ms ]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$1"; }

# blamed LOG COUNT prints the first lines of a log that name failed tests, each with what the test said, which stands after
# its name in what go test prints, and before it with -v, and with the first scenarios that failed in it. Then come data
# races, with the functions that race, panics, the tests that a time limit has ended, and what a guest's kernel complains
# of. Of a log without failed tests it prints other failures, those of the suite with their reasons, and its last three
# lines if it has none.
blamed() {
	local marks='FAIL[[:space:]]|panic: |fatal error: |[^ ]*: .*(FAILED|failed)' lines
	lines=$(awk -v most="$2" '
		{ sub(/^[ |>]*/, "") }
		/^=== (RUN|CONT|NAME) / { name = $3; failed = lines = 0 }
		/^--- / { failed = lines = 0 }
		/^--- FAIL: / && ++count <= most { print; printf "%s", said[$3]; failed = 1; after = told = 0 }
		/^[^ ]+\.go:[0-9]+: / {
			if (failed && ++after <= 3) print "  " $0
			if (!failed && name != "" && ++many[name] <= 3) said[name] = said[name] "  " $0 "\n"
		}
		/^FAIL  +[a-z]/ { lines = failed ? ++told <= 3 : name != "" && ++tells[name] <= 3; if (lines) lines = 2 }
		lines > 0 {
			if (failed) print "    " $0
			else said[name] = said[name] "    " $0 "\n"
			lines--
		}
		/^(panic: |fatal error: )/ && ++crashes <= 3 { crash = crash "  " $0 "\n" }
		/^panic: test timed out/ { late = 1 }
		late && /^\t\tTest/ { crash = crash "    " $1 " " $2 "\n" }
		/(WARNING: CPU|BUG: |kernel BUG|refcount_t: |list_(add|del) corruption|general protection fault,|blocked for more)/ &&
			++complaints <= 2 { crash = crash "  kernel: " $0 "\n" }
		/^WARNING: DATA RACE/ && ++races <= 3 { crash = crash "  " $0 "\n"; sides = 2 }
		racer { crash = crash "    " access ": " $0 "\n"; racer = 0 }
		sides && /^((Previous )?([Rr]ead|[Ww]rite)|(Previous )?atomic (read|write)) / { access = $0; sub(/ at .*/, "", access); racer = 1; sides-- }
		END { if (count || races || complaints || late) printf "%s", crash }' "$1")
	[ -n "$lines" ] || lines=$({ grep -aE -A 1 -m "$2" "^[ |>]*($marks)" "$1" | grep -vE '^--$' || tail -n 3 "$1"; } | sed -E 's/^[ |>]*//')
	printf '%s\n' "$lines"
}

# middle MOST leaves out the middle of lines that are longer.
middle() {
	awk -v most="$1" '
		length > most { $0 = substr($0, 1, most / 2) " ... " substr($0, length - most / 2 + 1) }
		{ print }'
}

# formatted ends the script with status 1 if gofmt would change a file.
formatted() {
	local bad
	bad=$(gofmt -l $(git ls-files '*.go'))
	[ -z "$bad" ] || die 1 "gofmt differs: $bad"
}

# anonymous FILE... ends the script with status 1 if one of the files names a folder of this machine: the project's, the
# user's home, or Go's. Compressed files are looked into.
anonymous() {
	local file folder folders=() named=()
	for folder in "$PWD" "${HOME:-}" "$("${GO:-go}" env GOROOT)" "$("${GO:-go}" env GOMODCACHE)"; do
		[[ $folder != /?* ]] || folders+=(-e "$folder/")
	done
	for file in "$@"; do
		# Not grep -q: it would not read to the end, and gzip would fail for it.
		! gzip -cdf "$file" | grep -caF "${folders[@]}" >/dev/null || named+=("$file")
	done
	[ ${#named[@]} -eq 0 ] || die 1 "not to be published, because folders of this machine are in there: ${named[*]}"
}

# quiet waits until the machine has got over what ran before, a build for one: at most 90 s for a load average of at most
# 0.5 over a minute.
quiet() {
	local start=$SECONDS load
	while read -r load _ </proc/loadavg && awk "BEGIN { exit !($load > 0.5) }"; do
		if [ $((SECONDS - start)) -ge 90 ]; then
			say "the load average is still $load: something else runs here, and the results will show it"
			return 0
		fi
		[ "$SECONDS" -ne "$start" ] || say "waiting until the machine is quiet (load average $load, 90 s at most)"
		sleep 3
	done
}
