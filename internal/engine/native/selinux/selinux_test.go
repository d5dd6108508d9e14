package selinux

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// fakePolicy is a policy that knows a few types and assigns levels in order.
type fakePolicy struct {
	disabled bool
	bare     bool // without types for containers
	pairs    int  // 0 means many
	next     int
	reserved []string
}

func (p *fakePolicy) Enabled() bool { return !p.disabled }

func (p *fakePolicy) Pairs() int { return cmp.Or(p.pairs, 1<<20) }

func (p *fakePolicy) Fresh() (Labels, error) {
	for {
		p.next++
		level := fmt.Sprintf("s0:c%d,c%d", p.next, p.next+1)
		if slices.Contains(p.reserved, level) {
			continue
		}
		p.reserved = append(p.reserved, level)
		return Labels{"system_u:system_r:container_t:" + level, "system_u:object_r:container_file_t:" + level}, nil
	}
}

func (p *fakePolicy) Reserve(label string) error {
	if level := levelOf(label); !slices.Contains(p.reserved, level) {
		p.reserved = append(p.reserved, level)
	}
	return nil
}

func (p *fakePolicy) Release(label string) {
	p.reserved = slices.DeleteFunc(p.reserved, func(level string) bool { return level == levelOf(label) })
}

func (p *fakePolicy) Check(label string) error {
	if strings.Contains(label, "ghost") || p.bare {
		return errors.New("invalid argument")
	}
	return nil
}

// TestPolicyWithoutContainers: Debian's policy names types for containers that it does not contain.
func TestPolicyWithoutContainers(t *testing.T) {
	policy := &fakePolicy{bare: true}
	_, err := New(policy, Auto).Sandbox("one", nil)
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "container-selinux") || !strings.Contains(err.Error(), "runtime.selinux") {
		t.Errorf("%v: want what to install, or to set", err)
	}
	if len(policy.reserved) != 0 {
		t.Errorf("categories are still reserved: %v", policy.reserved)
	}
}

// If all categories are in use, the next sandbox is refused. Once a sandbox is removed, the next
// one is accepted.
func TestCategoriesAreExhausted(t *testing.T) {
	l := New(&fakePolicy{pairs: 3}, Auto)
	for _, id := range []string{"one", "two", "three"} {
		mustSandbox(t, l, id, nil)
	}
	for range 2 {
		if _, err := l.Sandbox("four", nil); !errors.Is(err, errs.Exhausted) || !strings.Contains(err.Error(), "runtime.selinux_category_range") {
			t.Errorf("%v, want Exhausted and the key", err)
		}
	}
	l.Release("two")
	mustSandbox(t, l, "four", nil)
	if got := (Host{Categories: 3}).Pairs(); got != 3 {
		t.Errorf("3 categories are %d pairs", got)
	}
}

func mustSandbox(t *testing.T, l *Labeller, id string, asked *runtimeapi.SELinuxOption) Labels {
	t.Helper()
	labels, err := l.Sandbox(id, asked)
	if err != nil {
		t.Fatal(err)
	}
	return labels
}

func TestSandboxesAreKeptApart(t *testing.T) {
	p := &fakePolicy{}
	l := New(p, Auto)
	one, two := mustSandbox(t, l, "one", nil), mustSandbox(t, l, "two", nil)
	if one.Process == two.Process || one.Mount == two.Mount || levelOf(one.Process) != levelOf(one.Mount) {
		t.Errorf("%+v and %+v", one, two)
	}
	shared := &runtimeapi.SELinuxOption{Level: "s0:c7,c9"}
	mustSandbox(t, l, "three", shared)
	four := mustSandbox(t, l, "four", shared)
	if four.Process != "system_u:system_r:container_t:s0:c7,c9" || four.Mount != "system_u:object_r:container_file_t:s0:c7,c9" {
		t.Errorf("asked for a level: %+v", four)
	}
	if len(p.reserved) != 3 {
		t.Errorf("reserved %v: a level that was not used is not given back", p.reserved)
	}
	l.Release("three")
	if !slices.Contains(p.reserved, "s0:c7,c9") {
		t.Error("a level that another sandbox has was given back")
	}
	for _, id := range []string{"one", "two", "four", "four", "unknown"} {
		l.Release(id)
	}
	if len(p.reserved) != 0 {
		t.Errorf("still reserved: %v", p.reserved)
	}
}

// After a restart the levels of running sandboxes are not assigned again.
func TestAdopt(t *testing.T) {
	p := &fakePolicy{}
	old := mustSandbox(t, New(p, Auto), "old", nil)
	p = &fakePolicy{}
	l := New(p, Auto)
	if err := l.Adopt("old", old); err != nil {
		t.Fatal(err)
	}
	if fresh := mustSandbox(t, l, "new", nil); levelOf(fresh.Process) == levelOf(old.Process) {
		t.Errorf("both have %s", levelOf(old.Process))
	}
	l.Release("old")
	l.Release("new")
	if len(p.reserved) != 0 {
		t.Errorf("still reserved: %v", p.reserved)
	}
}

func TestContainers(t *testing.T) {
	l := New(&fakePolicy{}, Auto)
	sandbox := mustSandbox(t, l, "pod", nil)
	level := levelOf(sandbox.Process)
	for name, c := range map[string]struct {
		asked      *runtimeapi.SELinuxOption
		privileged bool
		want       Labels
	}{
		"nothing":    {nil, false, sandbox},
		"privileged": {&runtimeapi.SELinuxOption{}, true, Labels{Mount: sandbox.Mount}},
		"a type": {&runtimeapi.SELinuxOption{Type: "web_t"}, false, Labels{
			"system_u:system_r:web_t:" + level, sandbox.Mount,
		}},
		"all": {&runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0:c1,c2"}, true, Labels{
			"u:r:t:s0:c1,c2", "u:object_r:container_file_t:s0:c1,c2",
		}},
	} {
		got, err := l.Container(sandbox, c.asked, c.privileged)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	if _, err := l.Container(sandbox, &runtimeapi.SELinuxOption{Type: "ghost_t"}, false); !errors.Is(err, errs.Invalid) {
		t.Errorf("a type that the policy does not know: %v", err)
	}
	if _, err := l.Sandbox("bad", &runtimeapi.SELinuxOption{Type: "ghost_t"}); !errors.Is(err, errs.Invalid) {
		t.Errorf("a type that the policy does not know: %v", err)
	}
	if got := Shared(sandbox.Mount); got != "system_u:object_r:container_file_t:s0" {
		t.Errorf("shared: %s", got)
	}
}

func TestHostsWithoutSELinux(t *testing.T) {
	l := New(&fakePolicy{disabled: true}, Auto)
	for name, c := range map[string]struct {
		asked *runtimeapi.SELinuxOption
		kind  error
	}{
		"nothing":      {nil, nil},
		"empty":        {&runtimeapi.SELinuxOption{}, nil},
		"confinement":  {&runtimeapi.SELinuxOption{Level: "s0:c1,c2"}, errs.Unsupported},
		"no confining": {&runtimeapi.SELinuxOption{Type: superPrivileged, Level: "s0"}, nil},
	} {
		_, ofSandbox := l.Sandbox("x", c.asked)
		labels, err := l.Container(Labels{}, c.asked, false)
		for _, err := range []error{ofSandbox, err} {
			if !errors.Is(err, c.kind) || c.kind == nil && err != nil {
				t.Errorf("%s: %v, want %v", name, err, c.kind)
			}
		}
		if labels != (Labels{}) {
			t.Errorf("%s: %+v", name, labels)
		}
	}
}

// TestLenient: without SELinux a requested label is omitted. With SELinux it is applied.
func TestLenient(t *testing.T) {
	asked := &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
	l := New(&fakePolicy{disabled: true}, Lenient)
	if got, err := l.Sandbox("x", asked); err != nil || got != (Labels{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := l.Container(Labels{}, asked, false); err != nil || got != (Labels{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if !New(&fakePolicy{}, Lenient).Enabled() {
		t.Error("nothing is labelled where SELinux is")
	}
}

// TestOff: a request that the host cannot enforce is refused, as for AppArmor.
func TestOff(t *testing.T) {
	l := New(&fakePolicy{}, Off)
	for name, c := range map[string]struct {
		asked   *runtimeapi.SELinuxOption
		refused bool
	}{
		"nothing":      {nil, false},
		"empty":        {&runtimeapi.SELinuxOption{}, false},
		"no confining": {&runtimeapi.SELinuxOption{Type: superPrivileged, Level: "s0"}, false},
		"a level":      {&runtimeapi.SELinuxOption{Level: "s0:c1,c2"}, true},
		"a type":       {&runtimeapi.SELinuxOption{Type: "container_t"}, true},
	} {
		ofSandbox, sandboxErr := l.Sandbox("x", c.asked)
		ofContainer, containerErr := l.Container(Labels{}, c.asked, false)
		if ofSandbox != (Labels{}) || ofContainer != (Labels{}) {
			t.Errorf("%s: %+v, %+v", name, ofSandbox, ofContainer)
		}
		for _, err := range []error{sandboxErr, containerErr} {
			if !c.refused && err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if c.refused && (!errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "selinux_options: SELinux labels are turned off")) {
				t.Errorf("%s: %v, want a refusal by the field's name", name, err)
			}
		}
	}
}
