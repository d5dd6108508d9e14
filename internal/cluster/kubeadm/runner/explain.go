package runner

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
)

const (
	// journalLines is how many lines of a log are read, quotedLines how many an error quotes.
	journalLines = "500"
	quotedLines  = 10
)

// Explain adds to the error of a command what the node's services logged last: kubeadm reports only
// that it has waited for them.
func (r Runner) Explain(ctx context.Context, node string, runtime noderuntime.Runtime, failed error) error {
	if ctx.Err() != nil {
		return failed
	}
	args := []string{"journalctl", "--no-pager", "--quiet", "--output=short-monotonic", "--lines=" + journalLines, "--unit=kubelet.service"}
	for _, unit := range runtime.Units {
		args = append(args, "--unit="+unit)
	}
	text, err := provider.Output(ctx, r.Provider, node, args...)
	if err != nil {
		if ended := r.ended(ctx, node); ended != "" {
			return fmt.Errorf("%w\n%s", failed, ended)
		}
		return errors.Join(failed, err)
	}
	failed = r.withCrashes(ctx, node, failed)
	words := lastFaults(text)
	if len(words) == 0 {
		return failed
	}
	return fmt.Errorf("%w\nlast words of kubelet and %s in %s:\n  %s", failed, runtime.Name, node, strings.Join(words, "\n  "))
}

// ended describes a node that does not run any more: somebody may have stopped or removed it
// meanwhile. It is "" where the node runs, or the provider does not answer.
func (r Runner) ended(ctx context.Context, node string) string {
	all, err := r.Provider.List(ctx, r.Cluster)
	if err != nil {
		return ""
	}
	i := slices.IndexFunc(all, func(n provider.Node) bool { return n.Name == node })
	switch {
	case i < 0:
		return fmt.Sprintf("the container %s is gone; somebody has removed it", node)
	case !all[i].Running:
		return fmt.Sprintf("the container %s runs no more: it is %s, status %d", node, all[i].State, all[i].ExitCode)
	}
	return ""
}

// faultPattern matches a line that reports a fault. The journal's own priorities do not help: all
// that a service writes to its standard error has the same.
const faultPattern = `\]: [EWF][0-9]{4} |level=(warning|error|fatal|panic)|level=(WARN|ERROR)|"level":"(WARN|ERROR)"`

// lastFaults returns the last lines of a journal that report faults, each kind of fault once; or
// the last lines, where none does.
func lastFaults(text string) []string {
	lines := strings.FieldsFunc(text, func(c rune) bool { return c == '\n' })
	faults, numbers := regexp.MustCompile(faultPattern), regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)
	seen := map[string]bool{}
	var found []string
	for _, line := range slices.Backward(lines) {
		// A fault that is logged again differs in times, processes and ids.
		kind := numbers.ReplaceAllString(line, "#")
		if faults.MatchString(line) && !seen[kind] && len(found) < quotedLines {
			seen[kind] = true
			found = append(found, shorten(line))
		}
	}
	slices.Reverse(found)
	if len(found) == 0 {
		for _, line := range lines[max(0, len(lines)-quotedLines):] {
			found = append(found, shorten(line))
		}
	}
	return found
}

// shorten cuts a line to a length that people read: a kubelet quotes whole objects.
func shorten(line string) string {
	const most = 400
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return line
}
