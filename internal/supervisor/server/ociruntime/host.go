package ociruntime

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Host has the limits and capabilities that this process can give to containers. Where a spec
// requests more, Host reduces the spec, and keeps a warning, one for each cause.
type Host struct {
	// MayRaise is true with CAP_SYS_RESOURCE: hard limits may be raised, and oom scores lowered.
	MayRaise bool
	// Bounding has the capabilities that containers can have, as "CAP_X".
	Bounding map[string]bool
	// OOMScoreAdj is this process's own, the lowest that containers can have without MayRaise.
	OOMScoreAdj int
	// HardLimit returns this process's own hard limit.
	HardLimit func(kind int) (uint64, error)

	mu       sync.Mutex
	warnings []string
}

// softFiles and hardFiles are the RLIMIT_NOFILE of a container whose spec has none, as systemd gives it
// to a service. The supervisor's own limit is far above.
const softFiles, hardFiles = 1024, 524288

// ReadHost reads what the kernel gives to this process.
func ReadHost() (*Host, error) {
	h := &Host{Bounding: make(map[string]bool), HardLimit: hardLimit}
	own, err := sysproc.ReadCapabilities()
	if err != nil {
		return nil, err
	}
	for _, name := range own.Bounding {
		h.Bounding[name] = true
	}
	h.MayRaise = slices.Contains(own.Effective, "CAP_SYS_RESOURCE")
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return nil, fmt.Errorf("cannot read own oom_score_adj: %w", err)
	}
	if h.OOMScoreAdj, err = strconv.Atoi(strings.TrimSpace(string(data))); err != nil {
		return nil, fmt.Errorf("cannot read own oom_score_adj: %w", err)
	}
	return h, nil
}

// Warnings returns what Host has reduced so far, one sentence each.
func (h *Host) Warnings() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.warnings)
}

// Fit changes what the host does not allow in a container's spec, and sets what the container would
// inherit from this process.
func (h *Host) Fit(spec *specs.Spec) {
	p := spec.Process
	if p.OOMScoreAdj == nil {
		zero := 0
		p.OOMScoreAdj = &zero
	}
	if !h.MayRaise && *p.OOMScoreAdj < h.OOMScoreAdj {
		h.warn("oom_score_adj of containers cannot be lowered below %d here (no CAP_SYS_RESOURCE)", h.OOMScoreAdj)
		own := h.OOMScoreAdj
		p.OOMScoreAdj = &own
	}
	h.FitProcess(p)
}

// FitProcess is Fit for a process in a container that runs.
func (h *Host) FitProcess(p *specs.Process) {
	h.fitLimits(p)
	if c := p.Capabilities; c != nil {
		for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Inheritable, &c.Permitted, &c.Ambient} {
			*set = h.fitCapabilities(*set)
		}
	}
}

func (h *Host) fitLimits(p *specs.Process) {
	limits := slices.Clone(p.Rlimits)
	if !slices.ContainsFunc(limits, func(l specs.POSIXRlimit) bool { return l.Type == "RLIMIT_NOFILE" }) {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: softFiles, Hard: hardFiles})
	}
	for i := range limits {
		l := &limits[i]
		kind, known := finish.LimitKind(l.Type)
		if !known || h.MayRaise {
			continue
		}
		own, err := h.HardLimit(kind)
		if err != nil || l.Hard <= own {
			continue
		}
		if i < len(p.Rlimits) { // no warning for the default
			h.warn("%s of containers cannot be raised above %d here (no CAP_SYS_RESOURCE)", l.Type, own)
		}
		l.Hard, l.Soft = own, min(l.Soft, own)
	}
	p.Rlimits = limits
}

func (h *Host) fitCapabilities(set []string) []string {
	return slices.DeleteFunc(slices.Clone(set), func(name string) bool {
		if !sysproc.IsCapability(name) || h.Bounding[name] {
			return false // libcontainer refuses or ignores unknown names
		}
		h.warn("containers cannot have %s here (it is not in the supervisor's bounding set)", name)
		return true
	})
}

func (h *Host) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.warnings, text) {
		h.warnings = append(h.warnings, text)
		slog.Warn(text)
	}
}

func hardLimit(kind int) (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(kind, &limit); err != nil {
		return 0, fmt.Errorf("cannot read own limit %d: %w", kind, err)
	}
	return limit.Max, nil
}
