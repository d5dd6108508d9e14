package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider/command"
)

// fake is an engine in memory: containers and volumes with their labels, as far as a provider needs
// them. Its error messages are those of podman 4.3.1 and docker.
type fake struct {
	mu sync.Mutex
	// answers are for calls with this prefix. They take precedence over the fake's own answers.
	answers map[string]answer
	// on is called before each call, without the lock. If it returns an error, the call fails.
	on func(args []string) error
	// stays is called for each container to remove. If it returns a text, the container stays, and
	// rm prints the text and exits with status 0. nil means that all containers are removed.
	stays func(name string) (words string)

	calls      []string
	containers map[string]map[string]string // name: labels
	volumes    map[string]map[string]string
	networks   map[string]bool
	busy, peak int
	log        string
}

type answer struct {
	out, err string
	failed   bool
}

var errStatus = errors.New("exit status 125")

func newFake() *fake {
	return &fake{
		answers: map[string]answer{}, containers: map[string]map[string]string{}, volumes: map[string]map[string]string{}, networks: map[string]bool{},
		log: "[  OK  ] Reached target \x1b[0;1;39mmulti-user.target\x1b[0m - Multi-User System.\r\n",
	}
}

func (f *fake) Run(ctx context.Context, c command.Call) error {
	line := strings.Join(c.Args, " ")
	f.mu.Lock()
	f.calls = append(f.calls, line)
	f.busy++
	f.peak = max(f.peak, f.busy)
	on := f.on
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.busy--; f.mu.Unlock() }()
	if on != nil {
		if err := on(c.Args); err != nil {
			return command.Failed("fake", c, []string{err.Error()}, errStatus)
		}
	}
	if ctx.Err() != nil {
		return command.Failed("fake", c, nil, context.Cause(ctx))
	}
	f.mu.Lock()
	a := f.answer(c.Args, line)
	f.mu.Unlock()
	if c.Stdout != nil {
		fmt.Fprint(c.Stdout, a.out)
	}
	if c.Stderr != nil {
		fmt.Fprint(c.Stderr, a.err)
	}
	if a.failed {
		return command.Failed("fake", c, strings.Split(a.err, "\n"), errStatus)
	}
	if c.Args[0] == "logs" && ctx.Err() == nil && !strings.Contains(f.log, "Reached target") && !strings.Contains(f.log, "ENDS") {
		<-ctx.Done()
		return command.Failed("fake", c, nil, context.Cause(ctx))
	}
	return nil
}

func (f *fake) answer(args []string, line string) answer {
	longest := ""
	for start := range f.answers {
		if strings.HasPrefix(line, start) && len(start) > len(longest) {
			longest = start
		}
	}
	if longest != "" {
		return f.answers[longest]
	}
	last := args[len(args)-1]
	switch {
	case args[0] == "run":
		name, labels := args[2], labelsOf(args)
		if f.containers[name] != nil {
			return answer{err: `Error: the container name "` + name + `" is already in use by 36e395bfa58d`, failed: true}
		}
		f.containers[name] = labels
		return answer{out: name + "\n"}
	case args[0] == "logs":
		return answer{out: f.log}
	case args[0] == "rm":
		var said []string
		for _, name := range args[3:] {
			if f.stays != nil {
				if words := f.stays(name); words != "" {
					said = append(said, words)
					continue
				}
			}
			delete(f.containers, name)
		}
		return answer{err: strings.Join(said, "\n")}
	case args[0] == "ps" && args[1] == "-a":
		return answer{out: strings.Join(slices.Sorted(maps.Keys(f.containers)), "\n") + "\n"}
	case args[0] == "ps":
		return answer{out: strings.Join(filtered(f.containers, last), "\n") + "\n"}
	case line == "volume ls -q":
		return answer{out: strings.Join(slices.Sorted(maps.Keys(f.volumes)), "\n")}
	case strings.HasPrefix(line, "volume ls"):
		return answer{out: strings.Join(filtered(f.volumes, last), "\n")}
	case strings.HasPrefix(line, "volume create"):
		f.volumes[last] = labelsOf(args)
	case strings.HasPrefix(line, "volume rm"):
		if f.volumes[last] == nil {
			return answer{err: "Error: no such volume " + last, failed: true}
		}
		delete(f.volumes, last)
	case strings.HasPrefix(line, "container inspect"):
		return f.inspected(args[2:])
	case strings.HasPrefix(line, "network create"):
		f.networks[last] = true
	case strings.HasPrefix(line, "network ls"):
		return answer{}
	case strings.HasPrefix(line, "network inspect bridge"):
		return answer{out: "1450\n"}
	case strings.HasPrefix(line, "network inspect"):
		if !f.networks[last] {
			return answer{out: "[]", err: "Error: network " + last + ": unable to find network with name or ID " + last + ": network not found", failed: true}
		}
		return answer{out: `[{"name":"kind","labels":{"run.berth.network":"true"},"subnets":[{"subnet":"10.89.0.0/24"},{"subnet":"fc00:f853:ccd:e793::/64"}]}]`}
	}
	return answer{}
}

func (f *fake) inspected(names []string) answer {
	var all []string
	for _, name := range names {
		labels, found := f.containers[name]
		if !found {
			continue
		}
		var texts []string
		for k, v := range labels {
			texts = append(texts, fmt.Sprintf("%q:%q", k, v))
		}
		all = append(all, fmt.Sprintf(`{"Id":%q,"Name":%q,"State":{"Status":"exited","ExitCode":1},"Config":{"Labels":{%s}}}`, name, name, strings.Join(texts, ",")))
	}
	return answer{out: "[" + strings.Join(all, ",") + "]"}
}

func labelsOf(args []string) map[string]string {
	labels := map[string]string{}
	for i, arg := range args {
		if arg == "--label" {
			key, value, _ := strings.Cut(args[i+1], "=")
			labels[key] = value
		}
	}
	return labels
}

// filtered returns the names whose labels match a filter of ps or of volume ls.
func filtered(all map[string]map[string]string, filter string) []string {
	key, value, exact := strings.Cut(strings.TrimPrefix(filter, "label="), "=")
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		got, found := all[name][key]
		if found && (!exact || got == value) {
			names = append(names, name)
		}
	}
	return names
}

// called returns the calls with this prefix.
func (f *fake) called(start string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []string
	for _, call := range f.calls {
		if strings.HasPrefix(call, start) {
			found = append(found, call)
		}
	}
	return found
}

// engine returns an engine of a dialect that uses f.
func engine(t *testing.T, tool string, f *fake) *CLI {
	t.Helper()
	d, err := dialectOf(tool)
	if err != nil {
		t.Fatal(err)
	}
	return &CLI{dialect: d, run: f, version: version.MustParseGeneric("20.10.0"), host: fstest.MapFS{}, facts: Facts{CgroupV2: true, Memory: true, Pids: true, CPU: true}}
}

// planned returns the containers of a description.
func planned(t *testing.T, host plan.Host, text string) []Spec {
	t.Helper()
	c, err := config.Load("f", []byte("apiVersion: berth.run/v1alpha1\nkind: Cluster\nname: dev\n"+text), config.Options{Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	var specs []Spec
	for _, made := range plan.Make(c, host).Containers {
		spec := Spec{Container: made}
		if made.Role == config.BalancerRole {
			spec.Command = []string{"haproxy", "-f", "/etc/haproxy.cfg"}
		}
		specs = append(specs, spec)
	}
	return specs
}

func recorded(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
