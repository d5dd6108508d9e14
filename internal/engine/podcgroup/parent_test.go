package podcgroup

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCgroupParents(t *testing.T) {
	for _, c := range []struct {
		driver, asked, want string
		own                 bool
		kind                error
	}{
		{Cgroupfs, "/kubepods/podx", "/kubepods/podx", false, nil},
		{Cgroupfs, "kubepods/podx/", "/kubepods/podx", false, nil},
		{Cgroupfs, "", "/berth-t/s1", true, nil},
		{Cgroupfs, "/kubepods.slice/kubepods-podx.slice", "", false, errs.Invalid},
		{Systemd, "/kubepods.slice/kubepods-podx.slice", "kubepods-podx.slice", false, nil},
		{Systemd, "", "berth_t-pods1.slice", true, nil},
		{Systemd, "/kubepods/podx", "", false, errs.Invalid},
	} {
		m := New(Config{Driver: c.driver, Prefix: "cri-containerd", DefaultParent: "/berth-t"}, nil)
		if c.driver == Systemd {
			m.cfg.DefaultParent = "berth_t.slice"
		}
		got, own, err := m.parentOf("s1", c.asked)
		if got != c.want || own != c.own || !errors.Is(err, c.kind) {
			t.Errorf("%s, %q: %q, %v, %v; want %q, %v, kind %v", c.driver, c.asked, got, own, err, c.want, c.own, c.kind)
		}
	}
	m := New(Config{Driver: Systemd, Prefix: "cri-containerd"}, nil)
	if got := m.ContainerPath("a.slice", "c1"); got != "a.slice:cri-containerd:c1" {
		t.Errorf("systemd: %q", got)
	}
}
