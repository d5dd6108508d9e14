package finish

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
)

// full is a process with every field set.
func full() *Process {
	score := -5
	return &Process{
		Args: []string{"sh", "-c", ""}, Env: []string{"A=1"}, NeedsHome: true, Cwd: "/w",
		UID: 1, GID: 2, Groups: []int{3, 1 << 31}, Umask: 0o27,
		Rlimits:         []Rlimit{{Kind: 7, Soft: 1, Hard: 1 << 63}},
		Capabilities:    &Capabilities{Bounding: 1 << 40, Effective: 2, Permitted: 3, Inheritable: 4, Ambient: 5},
		NoNewPrivileges: true, Filter: &Filter{Program: []byte("12345678"), Flags: 2},
		AppArmor: "profile", SELinux: "label", OOMScoreAdj: &score, Keyring: "_ses.c", KeyringAccess: 8,
	}
}

func TestEncodingKeepsEveryField(t *testing.T) {
	values := reflect.ValueOf(*full())
	for i := range values.NumField() {
		if field := values.Type().Field(i); field.IsExported() && values.Field(i).IsZero() {
			t.Errorf("full does not set %s", field.Name)
		}
	}
	for _, p := range []*Process{full(), {}} {
		var w codec.Writer
		p.Encode(&w)
		r := codec.NewReader(w.Encoded())
		if got := Decode(r); !reflect.DeepEqual(got, p) || r.Err() != nil {
			t.Errorf("%+v became %+v, %v", p, got, r.Err())
		}
	}
}

func FuzzDecode(f *testing.F) {
	var w codec.Writer
	full().Encode(&w)
	f.Add(w.Encoded())
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Decode(codec.NewReader(b))
		if len(p.Args)+len(p.Env)+len(p.Groups)+len(p.Rlimits) > len(b) {
			t.Errorf("%d bytes became %+v", len(b), p)
		}
	})
}

func TestFromSpec(t *testing.T) {
	umask := uint32(0o77)
	p, err := FromSpec(&specs.Process{
		Args: []string{"true"},
		Cwd:  "/",
		Env:  []string{"A=1", "HOME=", "B=2", "A=3", "PATH=/bin"},
		User: specs.User{UID: 7, GID: 8, AdditionalGids: []uint32{9}, Umask: &umask},
		Capabilities: &specs.LinuxCapabilities{
			Bounding: []string{"CAP_CHOWN", "CAP_CHECKPOINT_RESTORE", "CAP_OF_THE_FUTURE"}, Ambient: []string{"CAP_KILL"},
		},
		Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: 1, Hard: 2}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &Process{
		Args: []string{"true"}, Cwd: "/", Env: []string{"B=2", "A=3", "PATH=/bin"}, NeedsHome: true,
		UID: 7, GID: 8, Groups: []int{9}, Umask: 0o77,
		Rlimits:      []Rlimit{{Kind: 6, Soft: 1, Hard: 2}},
		Capabilities: &Capabilities{Bounding: 1<<0 | 1<<40, Ambient: 1 << 5},
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p, want)
	}
	if p, err = FromSpec(&specs.Process{Args: []string{"true"}, Env: []string{"HOME=/h"}}, nil); err != nil || p.NeedsHome || p.Umask != DefaultUmask || p.Capabilities != nil {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestFromSpecRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		p    specs.Process
		kind error
	}{
		"no arguments":  {specs.Process{}, errs.Invalid},
		"NUL":           {specs.Process{Args: []string{"a\x00b"}}, errs.Invalid},
		"no name":       {specs.Process{Args: []string{"a"}, Env: []string{"=b"}}, errs.Invalid},
		"no value":      {specs.Process{Args: []string{"a"}, Env: []string{"b"}}, errs.Invalid},
		"NUL in value":  {specs.Process{Args: []string{"a"}, Env: []string{"b=\x00"}}, errs.Invalid},
		"unknown limit": {specs.Process{Args: []string{"a"}, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_X"}}}, errs.Invalid},
		"scheduler":     {specs.Process{Args: []string{"a"}, Scheduler: &specs.Scheduler{}}, errs.Unsupported},
	} {
		if _, err := FromSpec(&test.p, nil); !errors.Is(err, test.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProgramsAreLookedUpAsInAShell(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/run": 0o755, "a/plain": 0o644, "b/run": 0o755, "b/plain": 0o755} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "a"))
	path := dir + "/none:" + dir + "/a/:" + dir + "/b"
	for _, test := range []struct{ name, path, want string }{
		{"run", path, dir + "/a/run"},
		{"plain", path, dir + "/b/plain"},
		{dir + "/b/run", "", dir + "/b/run"},
		{"./run", "", "./run"},
	} {
		if got, err := lookUp(test.name, test.path); got != test.want || err != nil {
			t.Errorf("%s in %s: %q, %v", test.name, test.path, got, err)
		}
	}
	for _, test := range []struct {
		name, path, text string
		reason           error
	}{
		{"none", path, "executable file not found in $PATH", syscall.ENOENT},
		{"run", "", "executable file not found in $PATH", syscall.ENOENT},
		{"..", dir + "/a", "executable file not found in $PATH", syscall.ENOENT},
		{"run", ":" + dir + "/b", "relative to current directory", nil},
		{"/nope", path, `exec: "/nope": stat /nope: no such file or directory`, syscall.ENOENT},
		{dir + "/a/plain", path, "permission denied", syscall.EACCES},
		{dir + "/a", path, "is a directory", syscall.EISDIR},
		{dir + "/a/run/x", path, "not a directory", syscall.ENOTDIR},
	} {
		_, err := lookUp(test.name, test.path)
		f := failure.From(err)
		if f.Part != failure.OfProgram || f.Path != test.name || !strings.Contains(f.Text, test.text) || test.reason != nil && !errors.Is(f, test.reason) {
			t.Errorf("%s in %q: %+v", test.name, test.path, f)
		}
	}
}

func TestLimitsHaveTheKernelsNumbers(t *testing.T) {
	var kinds []int
	for _, name := range []string{"CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS", "LOCKS", "SIGPENDING", "MSGQUEUE", "NICE", "RTPRIO", "RTTIME"} {
		kind, ok := LimitKind("RLIMIT_" + name)
		if !ok || slices.Contains(kinds, kind) {
			t.Errorf("%s is %d, %v", name, kind, ok)
		}
		kinds = append(kinds, kind)
	}
}
