package ocispec

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// An image whose root user has names that look like numbers.
const testPasswd = `root:x:0:0:root:/root:/bin/sh
# a comment
app:x:1000:1001:App:/home/app:/bin/sh
4294967296:x:0:0::/:/bin/sh
2147483648:x:0:0::/:/bin/sh
1e3:x:0:0::/:/bin/sh
+0:x:0:0::/:/bin/sh
-1:x:0:0::/:/bin/sh
0x10:x:0:0::/:/bin/sh
1_0:x:0:0::/:/bin/sh
7zip:x:77:77::relative:/bin/sh
huge:x:4294967296:0::/:/bin/sh
short:x
`

const testGroup = `root:x:0:
staff:x:50:app,other
wheel:x:10:app
staff2:x:50:app
bad:x:nine:app
app:x:1001:
`

func TestUsersOfImages(t *testing.T) {
	type want struct {
		user User
		err  error
	}
	invalidWant := want{err: errs.Invalid}
	cases := map[string]want{
		"":         {user: User{UID: 0, GID: 0, Groups: []uint32{0}, Home: "/root"}},
		"0":        {user: User{UID: 0, GID: 0, Groups: []uint32{0}, Home: "/root"}},
		"000":      {user: User{UID: 0, GID: 0, Groups: []uint32{0}, Home: "/root"}},
		"app":      {user: User{UID: 1000, GID: 1001, Groups: []uint32{1001, 50, 10}, Home: "/home/app"}},
		"1000":     {user: User{UID: 1000, GID: 1001, Groups: []uint32{1001, 50, 10}, Home: "/home/app"}},
		"app:root": {user: User{UID: 1000, GID: 0, Groups: []uint32{0, 50, 10}, Home: "/home/app"}},
		"app:7":    {user: User{UID: 1000, GID: 7, Groups: []uint32{7, 50, 10}, Home: "/home/app"}},
		"app:":     {user: User{UID: 1000, GID: 1001, Groups: []uint32{1001, 50, 10}, Home: "/home/app"}},
		":10":      {user: User{UID: 0, GID: 10, Groups: []uint32{10}, Home: "/root"}},
		"4321":     {user: User{UID: 4321, GID: 0, Groups: []uint32{0}}},
		"7zip":     {user: User{UID: 77, GID: 77, Groups: []uint32{77}}},

		"2147483647":           {user: User{UID: 2147483647, Groups: []uint32{0}}},
		"2147483648":           invalidWant,
		"4294967295":           invalidWant,
		"4294967296":           invalidWant,
		"9223372036854775808":  invalidWant,
		"99999999999999999999": invalidWant,
		"-1":                   invalidWant,
		"+0":                   invalidWant,
		" 0":                   invalidWant,
		"0 ":                   invalidWant,
		"1e3":                  invalidWant,
		"0x10":                 invalidWant,
		"1_0":                  invalidWant,
		".5":                   invalidWant,
		"huge":                 invalidWant,
		"short":                invalidWant,
		"nobody":               invalidWant,
		"app:nogroup":          invalidWant,
		"app:-1":               invalidWant,
		"app:4294967296":       invalidWant,
		"a\nroot":              invalidWant,
		"app:root:x":           invalidWant,
	}
	for value, want := range cases {
		got, err := ResolveUser(&runtimeapi.ContainerConfig{}, imagespec.ImageConfig{User: value}, []byte(testPasswd), []byte(testGroup))
		if !errors.Is(err, want.err) {
			t.Errorf("user %q: error %v, want kind %v", value, err, want.err)
		}
		if diff := cmp.Diff(want.user, got); diff != "" {
			t.Errorf("user %q (-want +got):\n%s", value, diff)
		}
	}
}

func TestUsersOfRequests(t *testing.T) {
	id := func(v int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: v} }
	cases := []struct {
		name     string
		security *runtimeapi.LinuxContainerSecurityContext
		want     User
		err      error
	}{
		{"none: the image's", nil, User{UID: 1000, GID: 1001, Groups: []uint32{1001, 50, 10}, Home: "/home/app"}, nil},
		{"uid hides the image's group", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(5)}, User{UID: 5, Groups: []uint32{0}}, nil},
		{
			"strict: not the image's groups",
			&runtimeapi.LinuxContainerSecurityContext{SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict, SupplementalGroups: []int64{77}},
			User{UID: 1000, GID: 1001, Groups: []uint32{1001, 77}, Home: "/home/app"},
			nil,
		},
		{
			"uid and gid", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1000), RunAsGroup: id(8)},
			User{UID: 1000, GID: 8, Groups: []uint32{8, 50, 10}, Home: "/home/app"},
			nil,
		},
		{
			"name and gid", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "app", RunAsGroup: id(8)},
			User{UID: 1000, GID: 8, Groups: []uint32{8, 50, 10}, Home: "/home/app"},
			nil,
		},
		{
			"supplemental groups once each", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1000), SupplementalGroups: []int64{50, 60, 60, 1001}},
			User{UID: 1000, GID: 1001, Groups: []uint32{1001, 50, 10, 60}, Home: "/home/app"},
			nil,
		},
		{"largest", &runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(1<<31 - 1)}, User{UID: 1<<31 - 1, Groups: []uint32{0}}, nil},
		{"a number as a name", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "4294967296"}, User{}, errs.Invalid},
		{"a name that is a float", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "1e3"}, User{}, errs.Invalid},
		{"a name that nobody has", &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "ghost"}, User{}, errs.Invalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c.security}}
			got, err := ResolveUser(config, imagespec.ImageConfig{User: "app"}, []byte(testPasswd), []byte(testGroup))
			if !errors.Is(err, c.err) || c.err == nil && err != nil {
				t.Errorf("error %v, want kind %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The kernel accepts each group alone, but all of them exceed its limit by one.
func TestGroupsAreBounded(t *testing.T) {
	all := make([]int64, request.MaxGroups)
	for i := range all {
		all[i] = int64(i)
	}
	security := &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{}, SupplementalGroups: all}
	config := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: security}}
	if got, err := ResolveUser(config, imagespec.ImageConfig{}, nil, nil); err != nil || len(got.Groups) != request.MaxGroups {
		t.Errorf("as many groups as there may be: %d, %v", len(got.Groups), err)
	}
	security.RunAsGroup = &runtimeapi.Int64Value{Value: request.MaxGroups}
	if _, err := ResolveUser(config, imagespec.ImageConfig{}, nil, nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "supplemental_groups") {
		t.Errorf("one more: %v", err)
	}
}

func TestUserFilesAreBounded(t *testing.T) {
	huge := strings.Repeat("x:x:9:9::/:\n", MaxUserFile/12) + "late:x:7:7::/:\nlater:x:8:8::/:\n"
	if _, err := ResolveUser(nil, imagespec.ImageConfig{User: "later"}, []byte(huge), nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("an entry beyond the limit: %v, want kind Invalid", err)
	}
	long := "app:x:1:1:" + strings.Repeat("y", maxUserLine) + ":/:\napp:x:2:2::/:\n"
	got, err := ResolveUser(nil, imagespec.ImageConfig{User: "app"}, []byte(long), nil)
	if err != nil || got.UID != 2 {
		t.Errorf("an entry after a line that is too long: %+v, %v", got, err)
	}
	members := "g:x:5:" + strings.Repeat("a,", maxUserLine/4) + "app\n"
	got, err = ResolveUser(nil, imagespec.ImageConfig{User: "app"}, []byte("app:x:1:1::/:\n"), []byte(members))
	if err != nil || len(got.Groups) != 2 {
		t.Errorf("a group with many members: %+v, %v", got, err)
	}
}

func FuzzUserFiles(f *testing.F) {
	f.Add([]byte(testPasswd), []byte(testGroup), "app:staff")
	f.Add([]byte("a:b:c"), []byte(":::\n::::::"), ":")
	f.Add([]byte("root:x:0:0:\x00:/ho\x7fme"), []byte{}, "root")
	f.Fuzz(func(t *testing.T, passwd, group []byte, user string) {
		got, err := ResolveUser(nil, imagespec.ImageConfig{User: user}, passwd, group)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("user %q: %v has no kind", user, err)
			}
			return
		}
		if got.UID > request.MaxID || got.GID > request.MaxID || len(got.Groups) == 0 || got.Groups[0] != got.GID {
			t.Errorf("user %q: %+v", user, got)
		}
		if request.HasControl(got.Home) {
			t.Errorf("user %q: the home %q would break a line", user, got.Home)
		}
	})
}
