// Package selinux chooses the SELinux labels of sandboxes and containers, keeps the
// categories (MCS) of sandboxes apart, and relabels volumes.
package selinux

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

const field = "config.linux.security_context.selinux_options"

// superPrivileged is the type of processes that SELinux does not confine.
const superPrivileged = request.SuperPrivileged

// Labels are those of a sandbox or a container, "" for none.
type Labels struct {
	// Process is what processes run under.
	Process string `json:"process,omitempty"`
	// Mount is what files have that they may use.
	Mount string `json:"mount,omitempty"`
}

// Unconfined reports whether SELinux leaves the process unconfined, so that no file needs a
// label for it.
func (l Labels) Unconfined() bool {
	return l.Process == "" || typeOf(l.Process) == superPrivileged
}

// Policy is the SELinux policy of a kernel.
type Policy interface {
	// Enabled reports whether processes have labels.
	Enabled() bool
	// Fresh returns the policy's labels for containers, with unused categories,
	// and reserves them. It does not return when all are reserved.
	Fresh() (Labels, error)
	// Pairs is how many different categories Fresh has to give out, which are pairs.
	Pairs() int
	// Reserve marks the categories of a label as used; Release frees them.
	Reserve(label string) error
	Release(label string)
	// Check reports whether the policy knows a label.
	Check(label string) error
}

// Host is the policy of the running kernel.
type Host struct {
	// Categories is how many there are to give out, from c0 on; 0 for all 1024.
	Categories int
}

// Enabled implements Policy.
func (Host) Enabled() bool { return selinux.GetEnabled() }

// allCategories is how many policies know.
const allCategories = 1024

// Pairs implements Policy.
func (h Host) Pairs() int {
	n := cmp.Or(h.Categories, allCategories)
	return n * (n - 1) / 2
}

// Fresh implements Policy.
func (h Host) Fresh() (Labels, error) {
	if h.Categories > 0 {
		if err := selinux.SetCategoryRange(uint32(h.Categories)); err != nil {
			return Labels{}, fmt.Errorf("cannot give out %d SELinux categories: %w: %w", h.Categories, err, errs.Invalid)
		}
	}
	process, mount, err := label.InitLabels(nil)
	if err == nil && process == "" {
		err = fmt.Errorf("the host's SELinux policy has no labels for containers (is container-selinux installed?): %w", errs.Unsupported)
	}
	return Labels{process, mount}, err
}

// Reserve implements Policy. Categories that are reserved already are no error.
func (Host) Reserve(label string) error {
	if err := selinux.ReserveLabelV2(label); !errors.Is(err, selinux.ErrMCSAlreadyExists) {
		return err
	}
	return nil
}

// Release implements Policy.
func (Host) Release(label string) { selinux.ReleaseLabel(label) }

// Check implements Policy.
func (Host) Check(label string) error { return selinux.SecurityCheckContext(label) }

// Mode selects how labels are used.
type Mode string

// Modes. Where nothing is labelled, a label that would confine is refused, but with Lenient,
// which leaves it out as other runtimes do: Kubernetes' conformance tests demand labels of any
// host.
const (
	Auto    Mode = "auto"
	Off     Mode = "off"
	Lenient Mode = "lenient"
)

// Labeller chooses labels. All methods are safe for concurrent use.
type Labeller struct {
	policy Policy
	mode   Mode

	mu sync.Mutex
	// held are the process labels of sandboxes, by id.
	held map[string]string
}

// New returns a Labeller. With Off nothing is labelled, as on a host without SELinux.
func New(policy Policy, mode Mode) *Labeller {
	return &Labeller{policy: policy, mode: mode, held: map[string]string{}}
}

// Enabled reports whether processes and files are labelled.
func (l *Labeller) Enabled() bool { return l.mode != Off && l.policy.Enabled() }

// Sandbox chooses the labels of a sandbox and reserves their categories until
// Release. Kind Unsupported when confinement is asked for where there is none, Invalid for a label that the policy does not know.
func (l *Labeller) Sandbox(id string, requested *runtimeapi.SELinuxOption) (Labels, error) {
	if !l.Enabled() {
		return Labels{}, l.refuse(requested)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if levels := l.levels(); levels >= l.policy.Pairs() {
		return Labels{}, fmt.Errorf("%s: no SELinux categories are left: sandboxes have %d pairs of them; let more be given out (runtime.selinux_category_range), or remove sandboxes: %w",
			field, levels, errs.Exhausted)
	}
	fresh, err := l.policy.Fresh()
	if err != nil {
		return Labels{}, fmt.Errorf("%s: %w", field, err)
	}
	if err := l.known(fresh); err != nil {
		l.policy.Release(fresh.Process)
		return Labels{}, fmt.Errorf("%s: the host's SELinux policy has no types for containers: install them (container-selinux), "+
			"or set runtime.selinux = \"off\": %w: %w", field, err, errs.Unsupported)
	}
	labels, err := l.change(fresh, requested)
	if err != nil || levelOf(labels.Process) != levelOf(fresh.Process) {
		l.policy.Release(fresh.Process)
	}
	if err != nil {
		return Labels{}, err
	}
	l.held[id] = labels.Process
	return labels, l.policy.Reserve(labels.Process)
}

// levels is how many different levels sandboxes have. The caller holds l.mu.
func (l *Labeller) levels() int {
	levels := map[string]bool{}
	for _, label := range l.held {
		levels[levelOf(label)] = true
	}
	return len(levels)
}

// Adopt reserves the categories of a sandbox that an earlier process labelled.
func (l *Labeller) Adopt(id string, labels Labels) error {
	if !l.Enabled() || labels.Process == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[id] = labels.Process
	return l.policy.Reserve(labels.Process)
}

// Release frees a sandbox's categories, unless another sandbox has the same.
func (l *Labeller) Release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	label, ok := l.held[id]
	if !ok {
		return
	}
	delete(l.held, id)
	for _, other := range l.held {
		if levelOf(other) == levelOf(label) {
			return
		}
	}
	l.policy.Release(label)
}

// Container chooses the labels of a container: the sandbox's, but for what it asks
// for. One without a level of its own keeps the sandbox's, and with it the pod's
// files. A privileged container that asks for nothing is not confined.
func (l *Labeller) Container(sandbox Labels, requested *runtimeapi.SELinuxOption, privileged bool) (Labels, error) {
	if !l.Enabled() {
		return Labels{}, l.refuse(requested)
	}
	if isEmpty(requested) && privileged {
		return Labels{Mount: sandbox.Mount}, nil
	}
	if sandbox.Process == "" {
		return Labels{}, nil // made while labels were off
	}
	return l.change(sandbox, requested)
}

// refuse returns the error for a demand that cannot be met. A process that must not be
// confined gets its labels.
func (l *Labeller) refuse(requested *runtimeapi.SELinuxOption) error {
	if isEmpty(requested) || requested.GetType() == superPrivileged || l.mode == Lenient {
		return nil
	}
	why := "SELinux is not enabled on this host"
	if l.mode == Off {
		why = "SELinux labels are turned off in the configuration (runtime.selinux)"
	}
	return fmt.Errorf("%s: %s: %w", field, why, errs.Unsupported)
}

// change returns labels with what is asked for in its place.
func (l *Labeller) change(labels Labels, requested *runtimeapi.SELinuxOption) (Labels, error) {
	if isEmpty(requested) {
		return labels, nil
	}
	process, err := selinux.NewContext(labels.Process)
	if err != nil {
		return Labels{}, fmt.Errorf("cannot read the label %q: %w", labels.Process, err)
	}
	mount, err := selinux.NewContext(labels.Mount)
	if err != nil {
		return Labels{}, fmt.Errorf("cannot read the label %q: %w", labels.Mount, err)
	}
	for _, part := range []struct {
		name, value string
		ofFiles     bool
	}{{"user", requested.GetUser(), true}, {"role", requested.GetRole(), false}, {"type", requested.GetType(), false}, {"level", requested.GetLevel(), true}} {
		if part.value == "" {
			continue
		}
		process[part.name] = part.value
		if part.ofFiles {
			mount[part.name] = part.value
		}
	}
	changed := Labels{process.Get(), mount.Get()}
	if err := l.known(changed); err != nil {
		return Labels{}, fmt.Errorf("%s: %w: %w", field, err, errs.Invalid)
	}
	return changed, nil
}

// known checks labels against the policy. A mount with an unknown label fails without a
// reason.
func (l *Labeller) known(labels Labels) error {
	for _, label := range []string{labels.Process, labels.Mount} {
		if err := l.policy.Check(label); err != nil {
			return fmt.Errorf("the host's policy does not know %q: %w", label, err)
		}
	}
	return nil
}

func isEmpty(requested *runtimeapi.SELinuxOption) bool {
	return requested.GetUser()+requested.GetRole()+requested.GetType()+requested.GetLevel() == ""
}

// typeOf and levelOf are parts of user:role:type:level.
func typeOf(label string) string { return part(label, 2) }

func levelOf(label string) string { return part(label, 3) }

func part(label string, i int) string {
	parts := strings.SplitN(label, ":", 4)
	if i >= len(parts) {
		return ""
	}
	return parts[i]
}
