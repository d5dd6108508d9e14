package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/provider"
)

const (
	// heard is how many lines of the journal are looked at, quoted how many are told.
	heard  = "500"
	quoted = 10
)

// explain adds to the failure of a command what the node's services said last: kubeadm
// tells only that it has waited for them.
func (m *making) explain(ctx context.Context, node string, failed error) error {
	if ctx.Err() != nil {
		return failed
	}
	args := []string{"journalctl", "--no-pager", "--quiet", "--output=short-monotonic", "--lines=" + heard, "--unit=kubelet.service"}
	for _, unit := range m.runtimes[node].Units {
		args = append(args, "--unit="+unit)
	}
	text, err := provider.Output(ctx, m.Provider, node, args...)
	if err != nil {
		if ended := m.ended(ctx, node); ended != "" {
			return fmt.Errorf("%w\n%s", failed, ended)
		}
		return errors.Join(failed, err)
	}
	failed = m.crashed(ctx, node, failed)
	words := lastWords(text)
	if len(words) == 0 {
		return failed
	}
	return fmt.Errorf("%w\nlast words of kubelet and %s in %s:\n  %s", failed, m.runtimes[node].Name, node, strings.Join(words, "\n  "))
}

// ended says that a node runs no more, which somebody may have seen to in the middle; "" is that it
// runs, or that the engine does not tell.
func (m *making) ended(ctx context.Context, node string) string {
	all, err := m.Provider.List(ctx, m.Cluster.Name)
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

// complaint is what a line has that tells of a fault. The journal's own priorities say
// nothing: whatever a service writes to its standard error is of the same.
const complaint = `\]: [EWF][0-9]{4} |level=(warning|error|fatal|panic)|level=(WARN|ERROR)|"level":"(WARN|ERROR)"`

// lastWords are the last lines of a journal that complain, each kind of complaint once; or
// the last of all, where none does.
func lastWords(text string) []string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	complaints, numbers := regexp.MustCompile(complaint), regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)
	seen := map[string]bool{}
	var found []string
	for _, line := range slices.Backward(lines) {
		// Times, processes and ids are what a complaint that comes again differs in.
		kind := numbers.ReplaceAllString(line, "#")
		if complaints.MatchString(line) && !seen[kind] && len(found) < quoted {
			seen[kind] = true
			found = append(found, short(line))
		}
	}
	slices.Reverse(found)
	if len(found) == 0 {
		for _, line := range lines[max(0, len(lines)-quoted):] {
			found = append(found, short(line))
		}
	}
	return found
}

// short is a line that people read: a kubelet quotes whole objects.
func short(line string) string {
	const most = 400
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return line
}
