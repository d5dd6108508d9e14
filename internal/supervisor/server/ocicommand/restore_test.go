package ocicommand

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	"github.com/checkpoint-restore/go-criu/v8/magic"
	"google.golang.org/protobuf/proto"

	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

// decode reads the only message of an image file of CRIU.
func decode(t *testing.T, kind string, data []byte, m proto.Message) {
	t.Helper()
	const header = 12
	if len(data) < header {
		t.Fatalf("%d bytes", len(data))
	}
	known := magic.LoadMagic().ByName
	for at, want := range map[int]uint64{0: known["IMG_COMMON"], 4: known[kind], 8: uint64(len(data) - header)} {
		if got := uint64(binary.LittleEndian.Uint32(data[at:])); got != want {
			t.Errorf("%s: %#x at %d, want %#x", kind, got, at, want)
		}
	}
	if err := proto.Unmarshal(data[header:], m); err != nil {
		t.Fatal(err)
	}
}

// TestCgroupImage: CRIU puts all processes into the container's cgroups, which a process with a cgroup namespace sees as the root,
// and leaves them in the supervisor's where the container has none.
func TestCgroupImage(t *testing.T) {
	members := []member{
		{controllers: []string{"cpu", "cpuacct"}, path: "/pod/container", own: true}, {controllers: []string{"name=systemd"}, path: "/berth"}, {controllers: []string{""}, path: "/pod/container", own: true},
	}
	for _, namespace := range []bool{true, false} {
		got := &cgroup.CgroupEntry{}
		decode(t, "CGROUP", cgroupImage(members, namespace), got)
		if len(got.GetSets()) != 1 || got.GetSets()[0].GetId() != containerSet || len(got.GetSets()[0].GetCtls()) != len(members) || len(got.GetControllers()) != len(members) {
			t.Fatalf("%v", got)
		}
		for i, name := range []string{"cpu,cpuacct", "name=systemd", ""} {
			prefix := uint32(0)
			if namespace && members[i].own {
				prefix = uint32(len(members[i].path))
			}
			if m := got.GetSets()[0].GetCtls()[i]; m.GetName() != name || m.GetPath() != members[i].path || m.GetCgnsPrefix() != prefix {
				t.Errorf("member %v, want %q at %s with a prefix of %d", m, name, members[i].path, prefix)
			}
			if c := got.GetControllers()[i]; len(c.GetCnames()) != len(members[i].controllers) || c.GetCnames()[0] != members[i].controllers[0] || len(c.GetDirs()) != 0 {
				t.Errorf("controller %v: it has content, or is not %q", c, members[i].controllers)
			}
		}
	}
}

// TestSeccompImage: the filter of the request is the first one.
func TestSeccompImage(t *testing.T) {
	got := &seccomp.SeccompEntry{}
	decode(t, "SECCOMP", seccompImage(&finish.Filter{Program: []byte("programme"), Flags: 2}), got)
	if filters := got.GetSeccompFilters(); len(filters) != 1 || !bytes.Equal(filters[0].GetFilter(), []byte("programme")) || filters[0].GetFlags() != 2 || filters[0].Prev != nil {
		t.Errorf("%v", got)
	}
}
