package ocispec

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

func TestUnmappedUsersAreRefused(t *testing.T) {
	for _, user := range []User{{UID: 65536}, {GID: 65536}, {Groups: []uint32{0, 70000}}} {
		in := plainInput()
		inUserNamespace(&in)
		in.User = user
		if _, err := Container(in); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "not mapped") {
			t.Errorf("%+v: %v", user, err)
		}
	}
}

func TestRecursiveReadOnlyNeedsTheKernel(t *testing.T) {
	in := plainInput()
	in.Config.Mounts[0].RecursiveReadOnly = true
	// Clients look for this word.
	if _, err := Container(in); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "RROUnsupported") {
		t.Errorf("a kernel without: %v", err)
	}
}

// wholeHost is the id mapping of a machine's initial user namespace.
func wholeHost() request.UserNamespace {
	all := request.IDMapping{Length: math.MaxUint32}
	return request.UserNamespace{UIDs: all, GIDs: all}
}

func TestPodInitHasAUserOfItsOwn(t *testing.T) {
	in := plainInput()
	inUserNamespace(&in)
	for length, want := range map[uint32]uint32{65536: 65535, 1000: 999, 1: 0} {
		n := *in.UserNamespace
		n.UIDs.Length, n.GIDs.Length = length, length
		spec := PodInit{SandboxConfig: in.SandboxConfig, Namespaces: in.Namespaces, UserNamespace: &n, IDs: wholeHost()}.Spec()
		if spec.Process.User.UID != want || spec.Process.User.GID != want {
			t.Errorf("%d ids: %+v", length, spec.Process.User)
		}
		if spec.Linux.Namespaces[3].Path != "/ns/user" {
			t.Errorf("namespaces: %+v", spec.Linux.Namespaces)
		}
	}
	few := request.UserNamespace{UIDs: request.IDMapping{Length: 65536}, GIDs: request.IDMapping{Length: 65536}}
	for ids, want := range map[request.UserNamespace]uint32{wholeHost(): podInitID, few: 65535} {
		if spec := (PodInit{SandboxConfig: in.SandboxConfig, IDs: ids}).Spec(); spec.Process.User.UID != want || spec.Process.User.GID != want {
			t.Errorf("where there are %v: %+v", ids, spec.Process.User)
		}
	}
}

// Containers can reach everything that the pod's init can reach, so the init has nothing.
func TestPodInitHasNothing(t *testing.T) {
	spec := PodInit{SandboxConfig: plainInput().SandboxConfig, Rootfs: "/sealed", IDs: wholeHost()}.Spec()
	for _, m := range spec.Mounts {
		if m.Type != "bind" || !strings.HasPrefix(m.Source, "/sealed/") || !slices.Contains(m.Options, "ro") {
			t.Errorf("it has a mount: %+v", m)
		}
	}
	p := spec.Process
	if !spec.Root.Readonly || !p.NoNewPrivileges || !reflect.DeepEqual(p.Capabilities, &specs.LinuxCapabilities{}) {
		t.Errorf("root %+v, process %+v", spec.Root, p)
	}
	if r := spec.Linux.Resources; *r.Memory.Limit > 64<<20 || *r.Pids.Limit > 64 {
		t.Errorf("limits: %+v", r)
	}
}

func TestGroupsOfSysctlsAreThePods(t *testing.T) {
	n := &request.UserNamespace{GIDs: request.IDMapping{Host: 100000, Length: 1000}}
	for in, want := range map[string]string{"0 999": "100000 100999", "5\t5": "100005 100005", "1 0": "1 0"} {
		if got, err := n.HostGroups(in); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"0 1000", "x", "", "-1 5", "1"} {
		if got, err := n.HostGroups(in); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	if got := n.AllGroups(); got != "100000 100999" {
		t.Errorf("all: %q", got)
	}
	var none *request.UserNamespace
	if got, err := none.HostGroups("0 5"); got != "0 5" || err != nil || none.AllGroups() != "0 2147483647" {
		t.Errorf("without a user namespace: %q, %v", got, err)
	}
}
