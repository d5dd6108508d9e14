package churn

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/test/harness"
)

// errorLine is a line at error level.
type errorLine struct {
	log, text string
	at        time.Time
}

// source is the origin of a line: a file's line of the kubelet's, or a log of berth's.
func (l errorLine) source() string {
	place, _, _ := strings.Cut(l.text, "] ")
	if l.log != "kubelet" {
		place = ""
	}
	return l.log + " " + place
}

// checkLogs fails for every line at error level that is not expected.
func (r *run) checkLogs() {
	r.t.Helper()
	var lines []errorLine
	files := map[string]string{"kubelet": "kubelet.log", "berth": "berth.log"}
	if r.b.Has(harness.Supervisors) {
		files["supervisor"] = filepath.Join("state", "supervisor.log")
	}
	for log, file := range files {
		found, err := errorLines(log, filepath.Join(r.b.Dir, file))
		if err != nil {
			r.fail("%v", err)
		}
		lines = append(lines, found...)
	}
	slices.SortFunc(lines, func(a, b errorLine) int { return a.at.Compare(b.at) })
	expected := expected()
	counts, printed := make([]int, len(expected)), map[string]int{}
	for _, line := range lines {
		if i := slices.IndexFunc(expected, func(n noise) bool { return r.covers(n, line) }); i >= 0 {
			counts[i]++
			continue
		}
		if printed[line.source()]++; printed[line.source()] <= 5 {
			r.fail("%s logged an error at %s, %s: %s", line.log, line.at.Format("15:04:05.000"), r.around(line.at), line.text)
		}
	}
	for source, n := range printed {
		r.t.Logf("%d errors from %s", n, source)
	}
	for i, n := range expected {
		if counts[i] > 0 {
			r.t.Logf("%d times, as expected: %s %q: %s", counts[i], n.log, n.match, n.why)
		}
	}
}

// settled is how long after a disruption its errors may appear.
const settled = 30 * time.Second

func (r *run) covers(n noise, line errorLine) bool {
	if n.log != line.log || !regexp.MustCompile(n.match).MatchString(line.text) {
		return false
	}
	return len(n.after) == 0 || slices.ContainsFunc(r.disruptions, func(u disruption) bool {
		return slices.Contains(n.after, u.name) && !line.at.Before(u.from.Add(-time.Second)) && line.at.Before(u.to.Add(settled))
	})
}

// around names the last disruption before a moment.
func (r *run) around(at time.Time) string {
	said := "before any disruption"
	for _, u := range r.disruptions {
		if u.from.Before(at) {
			said = fmt.Sprintf("%v after %s", at.Sub(u.from).Round(time.Millisecond), u.name)
		}
	}
	return said
}

// errorLines are the lines at error level of a log of klog or slog.
func errorLines(log, path string) ([]errorLine, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []errorLine
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		if line, is := parseError(log, scanner.Text()); is {
			lines = append(lines, line)
		}
	}
	return lines, scanner.Err()
}

// parseError reports whether a line is at error level. Lines of klog have a letter, the day, a
// local time and the process; a panic has none of these.
func parseError(log, text string) (errorLine, bool) {
	if log != "kubelet" {
		stamp, rest, found := strings.Cut(strings.TrimPrefix(text, "time="), " level=")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if !found || err != nil {
			return errorLine{log: log, text: "not a line of slog's: " + text}, text != ""
		}
		return errorLine{log, rest, at}, strings.HasPrefix(rest, "ERROR")
	}
	if len(text) < 30 || !strings.ContainsAny(text[:1], "EF") {
		return errorLine{}, false
	}
	now := time.Now()
	at, err := time.ParseInLocation("20060102 15:04:05.000000", fmt.Sprintf("%d%s", now.Year(), text[1:21]), time.Local)
	if err != nil {
		return errorLine{}, false
	}
	_, rest, _ := strings.Cut(strings.TrimLeft(text[21:], " "), " ") // the process
	return errorLine{log, rest, at}, true
}
