package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// A part of a control plane that cannot run, for a flag that nobody knows or a gate that is none, is
// started again and again, and kubeadm waits for minutes. A node is asked from watchAfter on, each
// watchEvery: most are ready by then.
const (
	watchAfter = 4 * time.Second
	watchEvery = 2 * time.Second
)

// crashScript tells of a node's kubelet how often systemd has started it again, and of each part of its
// control plane the number of its last log, whether it runs, and its directory of logs.
const crashScript = `echo kubelet "$(systemctl show --property=NRestarts --value kubelet.service)"
for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do
	for dir in /var/log/pods/kube-system_"$name"-*/"$name"; do
		last=$(ls "$dir" 2>/dev/null | sed -n 's/^\([0-9][0-9]*\)\.log$/\1/p' | sort -n | tail -n 1)
		[ "$last" ] || continue
		comm=$(printf %.15s "$name") runs=no
		grep -qxF "$comm" /proc/[0-9]*/comm 2>/dev/null && runs=yes
		echo "$name" "$last" "$runs" "$dir"
	done
done`

// part is what a node tells of a part of its control plane, or of its kubelet.
type part struct {
	name string
	// starts is how often it was started again.
	starts int
	runs   bool
	// logs is the directory of its logs; "" is the kubelet, which has the journal.
	logs string
}

// dead is how often it has ended.
func (p part) dead() int {
	if p.runs || p.logs == "" {
		return p.starts
	}
	return p.starts + 1
}

// readParts reads what crashScript writes.
func readParts(text string) []part {
	var all []part
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 && len(fields) != 4 {
			continue
		}
		starts, err := strconv.Atoi(fields[1])
		if err != nil || starts < 0 {
			continue
		}
		p := part{name: fields[0], starts: starts}
		if len(fields) == 4 {
			p.runs, p.logs = fields[2] == "yes", fields[3]
		}
		all = append(all, p)
	}
	return all
}

// crash is the error of a part that has ended twice and says itself why.
type crash struct {
	node  string
	part  string
	times int
	words []string
}

func (c *crash) Error() string {
	return fmt.Sprintf("%s of %s has crashed %d times; it says:\n  %s", c.part, c.node, c.times, strings.Join(c.words, "\n  "))
}

// Unwrap is the kind.
func (c *crash) Unwrap() error { return errs.State }

// watch ends the waiting for kubeadm when a part has ended twice, and not for the lack of another one.
func (m *making) watch(ctx context.Context, node string, end context.CancelCauseFunc) {
	after, every := watchAfter, watchEvery
	if m.watchPause > 0 {
		after, every = m.watchPause, m.watchPause
	}
	var first, before []part
	for pause := after; ; pause = every {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		now, err := m.parts(ctx, node)
		if err != nil {
			continue // a node that is busy, or ends, of which kubeadm tells
		}
		if first == nil {
			first = now
		}
		for _, p := range now {
			// A log is there a moment before its process is: what does not run did not then, either.
			if i := slices.Index(before, p); i < 0 && !p.runs && p.logs != "" {
				p.runs = true
			}
			if i := slices.IndexFunc(first, func(f part) bool { return f.name == p.name }); p.logs == "" && i >= 0 {
				p.starts -= first[i].starts // of a kubelet that had no configuration yet
			}
			if p.dead() < 2 {
				continue
			}
			if words := m.wordsOf(ctx, node, p); len(words) > 0 && !lacks(words) {
				end(&crash{node, p.name, p.dead(), words})
				return
			}
		}
		before = now
	}
}

// parts asks a node.
func (m *making) parts(ctx context.Context, node string) ([]part, error) {
	text, err := provider.Output(ctx, m.Provider, node, "sh", "-c", crashScript)
	return readParts(text), err
}

// wordsOf is what a part said before it last ended; nothing where it cannot be told.
func (m *making) wordsOf(ctx context.Context, node string, p part) []string {
	args := []string{"journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=" + heard, "--unit=kubelet.service"}
	if p.logs != "" {
		log := p.starts
		if p.runs {
			log--
		}
		args = []string{"tail", "--lines=" + heard, fmt.Sprintf("%s/%d.log", p.logs, log)}
	}
	text, err := provider.Output(ctx, m.Provider, node, args...)
	if err != nil {
		return nil
	}
	return fatalWords(text)
}

// fatalWords are the lines of a log that say why its writer has ended: those of errors, the last ones,
// each once, and not the usage or the stack that may follow; or the last of all.
func fatalWords(text string) []string {
	fatal := regexp.MustCompile(`^[EF][0-9]{4} |^(Error|error|panic|fatal|flag provided)\b|^failed to |"level":"(error|fatal|panic)"|level=(error|fatal|panic)|command failed`)
	// A log of a container has the time, the stream and a letter before each line.
	prefix := regexp.MustCompile(`^[0-9T:.+Z-]{20,} (stdout|stderr) [FP] `)
	var all, found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(prefix.ReplaceAllString(strings.TrimSpace(line), "")); line != "" {
			all = append(all, line)
		}
	}
	const most = 4
	for _, line := range slices.Backward(all) {
		if fatal.MatchString(line) && !slices.Contains(found, short(line)) && len(found) < most {
			found = append(found, short(line))
		}
	}
	slices.Reverse(found)
	if len(found) == 0 {
		for _, line := range all[max(0, len(all)-most):] {
			found = append(found, short(line))
		}
	}
	return found
}

// lacks reports whether something ended since another thing was not there yet, which it may be the next
// time: etcd for the API server, and that for all others.
func lacks(words []string) bool {
	waiting := regexp.MustCompile(`(?i)connection refused|connection reset|deadline exceeded|i/o timeout|no route to host|unreachable|context canceled|leader ?election lost|unexpected EOF|TLS handshake|etcdserver:|address already in use`)
	return slices.ContainsFunc(words, waiting.MatchString)
}

// crashed adds to a failure what parts have said that do not run.
func (m *making) crashed(ctx context.Context, node string, failed error) error {
	all, err := m.parts(ctx, node)
	if err != nil {
		return failed
	}
	for _, p := range all {
		if p.logs == "" || p.runs {
			continue
		}
		if words := m.wordsOf(ctx, node, p); len(words) > 0 {
			failed = fmt.Errorf("%w\nlast words of %s, which does not run in %s:\n  %s", failed, p.name, node, strings.Join(words, "\n  "))
		}
	}
	return failed
}

// watched does something on a node until it ends, or a part of the node has crashed.
func (m *making) watched(ctx context.Context, node string, do func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.watch(ctx, node, end)
	}()
	err := do(ctx)
	seen := (*crash)(nil)
	if err != nil {
		errors.As(context.Cause(ctx), &seen)
	}
	end(nil)
	<-ended
	if seen != nil {
		return seen
	}
	return err
}
