package runner

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

// A part of a control plane that cannot run, because of an unknown flag or feature gate, restarts
// again and again, and kubeadm waits for minutes. The runner asks a node for crashes after
// watchAfter, when most nodes are ready, and then every watchEvery.
const (
	watchAfter = 4 * time.Second
	watchEvery = 2 * time.Second
)

// crashScript prints how often systemd has restarted the kubelet, and for each part of the control
// plane the number of its last log, whether it runs, and its log directory.
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

// part is the state of a part of a node's control plane, or of its kubelet.
type part struct {
	name string
	// restarts counts its restarts.
	restarts int
	runs     bool
	// logs is the directory of its logs; "" for the kubelet, which logs to the journal.
	logs string
}

// exits is how often it has ended.
func (p part) exits() int {
	if p.runs || p.logs == "" {
		return p.restarts
	}
	return p.restarts + 1
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
		p := part{name: fields[0], restarts: starts}
		if len(fields) == 4 {
			p.runs, p.logs = fields[2] == "yes", fields[3]
		}
		all = append(all, p)
	}
	return all
}

// crash is the error of a part that has ended twice and has logged the reason.
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

// watch ends the wait for kubeadm when a part has ended twice, unless it ended because another part
// was missing.
func (r Runner) watch(ctx context.Context, node string, end context.CancelCauseFunc) {
	after, every := watchAfter, watchEvery
	if r.WatchPause > 0 {
		after, every = r.WatchPause, r.WatchPause
	}
	var first, before []part
	for pause := after; ; pause = every {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		now, err := r.parts(ctx, node)
		if err != nil {
			continue // the node is busy, or ends, which kubeadm reports
		}
		if first == nil {
			first = now
		}
		for _, p := range now {
			// A log exists a moment before its process: only a part that did not run the last time,
			// either, counts as ended.
			if i := slices.Index(before, p); i < 0 && !p.runs && p.logs != "" {
				p.runs = true
			}
			if i := slices.IndexFunc(first, func(f part) bool { return f.name == p.name }); p.logs == "" && i >= 0 {
				p.restarts -= first[i].restarts // while the kubelet had no configuration
			}
			if p.exits() < 2 {
				continue
			}
			if words := r.lastErrors(ctx, node, p); len(words) > 0 && !dependencyMissing(words) {
				end(&crash{node, p.name, p.exits(), words})
				return
			}
		}
		before = now
	}
}

// parts asks a node for the state of its parts.
func (r Runner) parts(ctx context.Context, node string) ([]part, error) {
	text, err := provider.Output(ctx, r.Provider, node, "sh", "-c", crashScript)
	return readParts(text), err
}

// lastErrors returns what a part logged before it last ended; nothing where the log cannot be read.
func (r Runner) lastErrors(ctx context.Context, node string, p part) []string {
	args := []string{"journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=" + journalLines, "--unit=kubelet.service"}
	if p.logs != "" {
		log := p.restarts
		if p.runs {
			log--
		}
		args = []string{"tail", "--lines=" + journalLines, fmt.Sprintf("%s/%d.log", p.logs, log)}
	}
	text, err := provider.Output(ctx, r.Provider, node, args...)
	if err != nil {
		return nil
	}
	return fatalLines(text)
}

// fatalLines returns the lines of a log that explain why its writer has ended: the last errors,
// each once, without the usage or the stack that may follow; or the last lines, where there are no
// errors.
func fatalLines(text string) []string {
	fatal := regexp.MustCompile(`^[EF][0-9]{4} |^(Error|error|panic|fatal|flag provided)\b|^failed to |"level":"(error|fatal|panic)"|level=(error|fatal|panic)|command failed`)
	// A container's log has the time, the stream and a tag before each line.
	prefix := regexp.MustCompile(`^[0-9T:.+Z-]{20,} (stdout|stderr) [FP] `)
	var all, found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(prefix.ReplaceAllString(strings.TrimSpace(line), "")); line != "" {
			all = append(all, line)
		}
	}
	const most = 4
	for _, line := range slices.Backward(all) {
		if fatal.MatchString(line) && !slices.Contains(found, shorten(line)) && len(found) < most {
			found = append(found, shorten(line))
		}
	}
	slices.Reverse(found)
	if len(found) == 0 {
		for _, line := range all[max(0, len(all)-most):] {
			found = append(found, shorten(line))
		}
	}
	return found
}

// dependencyMissing reports whether a part ended because another part was not ready yet: etcd for
// the API server, and the API server for all others. It may succeed the next time.
func dependencyMissing(words []string) bool {
	waiting := regexp.MustCompile(`(?i)connection refused|connection reset|deadline exceeded|i/o timeout|no route to host|unreachable|context canceled|leader ?election lost|unexpected EOF|TLS handshake|etcdserver:|address already in use`)
	return slices.ContainsFunc(words, waiting.MatchString)
}

// withCrashes adds to an error what the parts that do not run have logged.
func (r Runner) withCrashes(ctx context.Context, node string, failed error) error {
	all, err := r.parts(ctx, node)
	if err != nil {
		return failed
	}
	for _, p := range all {
		if p.logs == "" || p.runs {
			continue
		}
		if words := r.lastErrors(ctx, node, p); len(words) > 0 {
			failed = fmt.Errorf("%w\nlast words of %s, which does not run in %s:\n  %s", failed, p.name, node, strings.Join(words, "\n  "))
		}
	}
	return failed
}

// watched runs do until it ends, or a part of the node has crashed.
func (r Runner) watched(ctx context.Context, node string, do func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.watch(ctx, node, end)
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
