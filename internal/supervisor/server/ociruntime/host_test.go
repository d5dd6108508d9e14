package ociruntime

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func poorHost() *Host {
	return &Host{
		Bounding:    map[string]bool{"CAP_KILL": true, "CAP_CHOWN": true},
		OOMScoreAdj: -5,
		HardLimit:   func(int) (uint64, error) { return 20000, nil },
	}
}

func greedySpec() *specs.Spec {
	all := []string{"CAP_KILL", "CAP_SYS_RESOURCE", "CAP_CHOWN"}
	low := -998
	return &specs.Spec{Process: &specs.Process{
		OOMScoreAdj:  &low,
		Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 20, Hard: 1 << 20}, {Type: "RLIMIT_CORE", Soft: 5, Hard: 7}},
		Capabilities: &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: slices.Clone(all), Ambient: all[1:2]},
	}}
}

func TestFitClampsAndWarnsOnce(t *testing.T) {
	h := poorHost()
	for range 3 {
		spec := greedySpec()
		shared := spec.Process.Capabilities.Bounding
		h.Fit(spec)
		p := spec.Process
		if *p.OOMScoreAdj != -5 {
			t.Errorf("oom_score_adj %d", *p.OOMScoreAdj)
		}
		if !slices.Equal(p.Rlimits, []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 20000, Hard: 20000}, {Type: "RLIMIT_CORE", Soft: 5, Hard: 7}}) {
			t.Errorf("limits %+v", p.Rlimits)
		}
		if want := []string{"CAP_KILL", "CAP_CHOWN"}; !slices.Equal(p.Capabilities.Bounding, want) || !slices.Equal(p.Capabilities.Permitted, want) || len(p.Capabilities.Ambient) != 0 {
			t.Errorf("capabilities %+v", p.Capabilities)
		}
		if len(shared) != 3 || shared[1] != "CAP_SYS_RESOURCE" {
			t.Errorf("the caller's slice was changed: %v", shared)
		}
	}
	if w := h.Warnings(); len(w) != 3 {
		t.Errorf("%d warnings: %q", len(w), w)
	}
}

func TestFitKeepsTheSpecOfACapableHost(t *testing.T) {
	h := poorHost()
	h.MayRaise = true
	h.Bounding["CAP_SYS_RESOURCE"] = true
	spec := greedySpec()
	before, _ := json.Marshal(spec)
	h.Fit(spec)
	if after, _ := json.Marshal(spec); string(after) != string(before) {
		t.Errorf("%s\nbecame %s", before, after)
	}
	if w := h.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
}

func TestFitSetsWhatMustNotBeInherited(t *testing.T) {
	h := poorHost()
	spec := &specs.Spec{Process: &specs.Process{}}
	h.Fit(spec)
	if spec.Process.OOMScoreAdj == nil || *spec.Process.OOMScoreAdj != 0 {
		t.Error("the supervisor's oom_score_adj comes through")
	}
	if want := (specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 20000}); len(spec.Process.Rlimits) != 1 || spec.Process.Rlimits[0] != want {
		t.Errorf("limits %+v", spec.Process.Rlimits)
	}
	if w := h.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q for what nobody asked for", w)
	}
}

func TestUnknownCapabilityIsPassedToTheRuntime(t *testing.T) {
	h := poorHost()
	p := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_NONSENSE"}}}
	h.FitProcess(p)
	if !slices.Equal(p.Capabilities.Bounding, []string{"CAP_NONSENSE"}) || len(h.Warnings()) != 0 {
		t.Errorf("%v %q", p.Capabilities.Bounding, h.Warnings())
	}
}

func TestCheckSpec(t *testing.T) {
	good := func() *specs.Spec {
		return &specs.Spec{
			Root:    &specs.Root{Path: "rootfs"},
			Process: &specs.Process{Args: []string{"x"}},
			Linux:   &specs.Linux{CgroupsPath: "/pod/id"},
		}
	}
	if err := checkSpec("id", "/bundle", good(), false); err != nil {
		t.Errorf("a good spec: %v", err)
	}
	for want, change := range map[string]func(*specs.Spec){
		"args":         func(s *specs.Spec) { s.Process.Args = nil },
		"process":      func(s *specs.Spec) { s.Process = nil },
		"root.path":    func(s *specs.Spec) { s.Root = nil },
		"cgroupsPath ": func(s *specs.Spec) { s.Linux.CgroupsPath = "/pod/other" },
		"is empty":     func(s *specs.Spec) { s.Linux = nil },
		"is relative":  func(s *specs.Spec) { s.Linux.CgroupsPath = "pod/id" },
		"source": func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Type: "bind", Source: "../x", Destination: "/x"}}
		},
	} {
		s := good()
		change(s)
		if err := checkSpec("id", "/bundle", s, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	s := good()
	s.Linux.CgroupsPath = "/pod/id"
	if err := checkSpec("id", "/bundle", s, true); err == nil {
		t.Error("a path was taken for systemd")
	}
	s.Linux.CgroupsPath = "a.slice:cri:id"
	if err := checkSpec("id", "/bundle", s, true); err != nil {
		t.Error(err)
	}
}
