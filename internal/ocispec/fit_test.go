package ocispec

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// TestFit: limits that others have set and that the host cannot have are left out or refused, as
// those of a request are.
func TestFit(t *testing.T) {
	limit := int64(1 << 20)
	with := func(change func(*specs.LinuxResources)) *specs.Spec {
		limits := &specs.LinuxResources{}
		change(limits)
		return &specs.Spec{Linux: &specs.Linux{Resources: limits}}
	}
	memory := func(r *specs.LinuxResources) { r.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit} }
	for _, swap := range []bool{false, true} {
		spec, host := with(memory), Host{SwapLimit: swap}
		if err := Fit(spec, host); err != nil || (spec.Linux.Resources.Memory.Swap != nil) != swap || spec.Linux.Resources.Memory.Limit == nil {
			t.Errorf("swap with %+v: %+v, %v", host, spec.Linux.Resources.Memory, err)
		}
	}
	for field, change := range map[string]func(*specs.LinuxResources){
		"hugepage_limits": func(r *specs.LinuxResources) {
			r.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}}
		},
		"unified": func(r *specs.LinuxResources) { r.Unified = map[string]string{"memory.high": "1"} },
	} {
		if err := Fit(with(change), Host{}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s on a host without it: %v", field, err)
		}
		if err := Fit(with(change), Host{Hugetlb: true, CgroupV2: true}); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := Fit(&specs.Spec{}, Host{}); err != nil {
		t.Error(err)
	}
}
