package conformance

// Verdict is how a run is judged.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "PASS"
	Fail Verdict = "FAIL"

	// XFail: the run fails or differs, and the profile has an entry for it with reason and
	// evidence.
	XFail Verdict = "XFAIL"

	// XPass: the profile says that the run differs, and it does not. The profile is wrong,
	// which is a failure.
	XPass Verdict = "XPASS"

	// Unsupported: a provider lacks something that the run needs; Result.Why names it.
	Unsupported Verdict = "UNSUPPORTED"

	// Setup: the run could not be tried; Result.Why says why.
	Setup Verdict = "SETUP"
)

// Good reports whether the verdict lets a suite pass.
func (v Verdict) Good() bool { return v == Pass || v == XFail || v == Unsupported }

// Passed reports whether a suite with these verdicts has passed: nothing failed,
// nothing could not be tried, and something passed.
func Passed(counts map[Verdict]int) bool {
	for v, n := range counts {
		if n > 0 && !v.Good() {
			return false
		}
	}
	return counts[Pass] > 0
}
