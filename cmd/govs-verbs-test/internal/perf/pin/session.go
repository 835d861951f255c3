package pin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// autogroup is where the kernel keeps the nice value of this process's session, if it
// schedules sessions against each other (sched(7)).
const autogroup = "/proc/self/autogroup"

// RaiseSession gives this process's session precedence over all others of the machine,
// until restore is called. restore is nil if the kernel does not schedule the session
// against others, or the process may not change the precedence.
func RaiseSession() (restore func() error, err error) {
	text, err := os.ReadFile(autogroup)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	nice, scheduled, err := sessionNice(string(text))
	if !scheduled {
		return nil, err
	}
	set := func(nice int) error { return os.WriteFile(autogroup, fmt.Appendln(nil, nice), 0) }
	if err := set(-20); errors.Is(err, fs.ErrPermission) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return func() error { return set(nice) }, nil
}

// sessionNice returns what the file autogroup holds. The file is empty for a process that
// is not scheduled with its session, but with its cgroup.
func sessionNice(text string) (nice int, scheduled bool, err error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, false, nil
	}
	var group string
	if _, err := fmt.Sscanf(text, "%s nice %d", &group, &nice); err != nil {
		return 0, false, fmt.Errorf("%s holds %q; want \"/autogroup-N nice N\": %w", autogroup, text, err)
	}
	return nice, true, nil
}
