package ocihooks

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// always is a file whose hook, /bin/true with one argument, all containers get at one stage.
func always(argument, stage string) string {
	return fmt.Sprintf(`{"version":"1.0.0","hook":{"path":"/bin/true","args":["true",%q]},"when":{"always":true},"stages":[%q]}`, argument, stage)
}

// write makes a directory of files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		put(t, filepath.Join(dir, name), content)
	}
	return dir
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// argumentsOf returns the second argument of each hook that a container gets, by stage.
func argumentsOf(hooks Hooks, c *Container) map[string][]string {
	spec := &specs.Spec{}
	hooks.Inject(spec, c)
	all := map[string][]string{}
	if spec.Hooks == nil {
		return all
	}
	for stage, list := range stages(spec.Hooks) {
		for _, h := range *list {
			all[stage] = append(all[stage], h.Args[1])
		}
	}
	return all
}

func TestEveryStage(t *testing.T) {
	all := slices.Sorted(maps.Keys(stages(&specs.Hooks{})))
	dir := write(t, map[string]string{"x.json": `{"version":"1.0.0","extra":1,"hook":{"path":"/bin/true","args":["true","x"],"env":["A=b","C="],"timeout":7},
		"when":{"always":true},"stages":["` + strings.Join(all, `","`) + `"]}`})
	hooks, faults := new(Reader).Read([]string{dir})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	got := &specs.Spec{Hooks: &specs.Hooks{Poststop: []specs.Hook{{Path: "/first"}}}}
	hooks.Inject(got, &Container{})
	seven := 7
	h := specs.Hook{Path: "/bin/true", Args: []string{"true", "x"}, Env: []string{"A=b", "C="}, Timeout: &seven}
	one := []specs.Hook{h}
	want := &specs.Hooks{Prestart: one, CreateRuntime: one, CreateContainer: one, StartContainer: one, Poststart: one, Poststop: []specs.Hook{{Path: "/first"}, h}} //nolint:staticcheck // part of the format
	if diff := cmp.Diff(want, got.Hooks); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	*got.Hooks.Prestart[0].Timeout = 99 //nolint:staticcheck // part of the format
	got.Hooks.Poststart[0].Env[0] = "changed"
	again := &specs.Spec{}
	hooks.Inject(again, &Container{})
	if diff := cmp.Diff(one, again.Hooks.Poststart); diff != "" {
		t.Errorf("a container has changed the hook of others (-want +got):\n%s", diff)
	}
}

// TestOrderAndPrecedence: the order is that of the names in lower case, and later directories replace files of
// earlier ones, bad ones, too.
func TestOrderAndPrecedence(t *testing.T) {
	low := write(t, map[string]string{
		"02-b.json": always("low b", "prestart"), "01-UPPER.json": always("upper", "prestart"), "01-lower.json": always("lower", "prestart"),
		"10-bad.json": "{", "README": "{", "x.json.bak": "{",
	})
	high := write(t, map[string]string{"02-b.json": always("high b", "prestart"), "10-bad.json": always("good", "prestart")})
	hooks, faults := new(Reader).Read([]string{low, filepath.Join(low, "absent"), high})
	if len(faults) > 0 {
		t.Error(faults)
	}
	if diff := cmp.Diff([]string{"lower", "upper", "high b", "good"}, argumentsOf(hooks, &Container{})["prestart"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNamed: an error of a hook gets stage, program and file, as far as its text says which hook it was.
func TestNamed(t *testing.T) {
	dir := write(t, map[string]string{"a.json": always("a", "createRuntime"), "b.json": always("b", "createRuntime"), "c.json": always("c", "startContainer")})
	hooks, faults := new(Reader).Read([]string{dir})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	spec := &specs.Spec{Hooks: &specs.Hooks{Prestart: []specs.Hook{{Path: "/cdi"}}}} //nolint:staticcheck // part of the format
	hooks.Inject(spec, &Container{})
	a, b := "/bin/true (createRuntime, "+dir+"/a.json)", "/bin/true (createRuntime, "+dir+"/b.json)"
	c := "/bin/true (startContainer, " + dir + "/c.json)"
	for text, want := range map[string]string{
		"error running createRuntime hook #1: /bin/true: exit status 1":                            "OCI hook " + b + ": ",
		`handler "runc": /usr/bin/runc create: x: error running hook #1: error running hook: exit`: "OCI hook " + b + ": ",
		`handler "runc": /usr/bin/runc create: x: error running hook #0: error running hook: exit`: "one of the OCI hooks /cdi (prestart, of no file in hooks_dirs), " + a + ", " + c + ": ",
		"handler \"crun\": /usr/bin/crun create: error executing hook `/cdi` (exit code: 1)":       "OCI hook /cdi (prestart, of no file in hooks_dirs): ",
		"handler \"crun\": /usr/bin/crun create: error executing hook `/bin/true` (exit code: 1)":  "one of the OCI hooks " + a + ", " + b + ", " + c + ": ",
		"a startContainer hook has failed, or the program cannot be executed":                      "OCI hook " + c + ": ",
		"error running createRuntime hook #7: x":                                                   "",
		`exec: "error running createRuntime hook #1: ": executable file not found in $PATH`:        "",
		"executable file `error executing hook ` (exit code: 1) not found":                         "",
		"something else": "",
	} {
		err := errors.New(text)
		if got := hooks.Named(err, spec.Hooks); got.Error() != want+text || !errors.Is(got, err) {
			t.Errorf("%s became %s, want %q before it", text, got, want)
		}
	}
}

func TestConditions(t *testing.T) {
	c := &Container{Annotations: map[string]string{"example.com/department": "fluid-dynamics", "other": "x"}, Command: "/usr/bin/init", HasBindMounts: true}
	bare := &Container{Command: "sh"}
	for when, want := range map[string]struct{ full, bare bool }{
		`{"always":true}`:                {true, true},
		`{"always":false}`:               {false, false},
		`{"hasBindMounts":true}`:         {true, false},
		`{"hasBindMounts":false}`:        {false, false},
		`{"commands":[".*/init$","x"]}`:  {true, false},
		`{"commands":["sh"]}`:            {false, true},
		`{"commands":["^/usr/bin/in$"]}`: {false, false},
		`{"annotations":{"^example\\.com/department$":".*dynamics$"}}`:                  {true, false},
		`{"annotations":{"^example\\.com/department$":"^dynamics$"}}`:                   {false, false},
		`{"annotations":{"department":"fluid","other":"y"}}`:                            {false, false},
		`{"annotations":{"department":"fluid","other":"x"},"commands":["init"]}`:        {true, false},
		`{"annotations":{"department":"fluid"},"commands":["sh"]}`:                      {false, false},
		`{"always":true,"hasBindMounts":true,"commands":["init"]}`:                      {true, false},
		`{"always":true,"annotations":{"department":"x"}}`:                              {false, false},
		`{"annotations":{"other":"fluid"}}`:                                             {false, false},
		`{"always":null,"annotations":null,"commands":["^$","s"],"hasBindMounts":null}`: {true, true},
	} {
		d, err := parse([]byte(`{"version":"1.0.0","hook":{"path":"/bin/true"},"when":` + when + `,"stages":["poststop"]}`))
		if err != nil {
			t.Errorf("%s: %v", when, err)
			continue
		}
		if full, other := d.when.match(c), d.when.match(bare); full != want.full || other != want.bare {
			t.Errorf("%s: %v and %v, want %+v", when, full, other, want)
		}
	}
}

// TestFaultsNameFileAndField: each bad file is a fault, with its path and its field, and the good ones stay.
func TestFaultsNameFileAndField(t *testing.T) {
	const hook, when, atStop = `"hook":{"path":"/bin/true"}`, `"when":{"always":true}`, `"stages":["poststop"]`
	file := func(parts ...string) string { return "{" + strings.Join(append(parts, `"version":"1.0.0"`), ",") + "}" }
	dir := write(t, map[string]string{"good.json": always("good", "poststop")})
	plain := filepath.Join(dir, "plain")
	put(t, plain, "")
	wanted := map[string]struct{ content, fault string }{
		"a": {"{", "unexpected end of JSON input"},
		"b": {`{"hook":"/bin/true","stages":["prestart"],"cmds":["x"]}`, "hook: string instead of"},
		"c": {`{` + hook + `,"stages":["prestart"]}`, `version: is missing; want "1.0.0"`},
		"d": {`{"version":"0.1.0"}`, `version: "0.1.0": want "1.0.0"`},
		"e": {file(when, atStop), "hook: is missing"},
		"f": {file(`"hook":{}`, when, atStop), "hook.path: is missing"},
		"g": {file(`"hook":{"path":"bin/true"}`, when, atStop), `hook.path: "bin/true" is not an absolute path`},
		"h": {file(`"hook":{"path":"/no/such/program"}`, when, atStop), "hook.path: stat /no/such/program"},
		"i": {file(`"hook":{"path":"`+plain+`"}`, when, atStop), "hook.path: " + plain + " is not an executable file"},
		"j": {file(`"hook":{"path":"/bin/true","timeout":0}`, when, atStop), "hook.timeout: 0: want a number"},
		"k": {file(`"hook":{"path":"/bin/true","timeout":"3s"}`, when, atStop), "hook.timeout: string instead of int"},
		"l": {file(`"hook":{"path":"/bin/true","env":["A=b","=c"]}`, when, atStop), `hook.env[1]: "=c": want NAME=VALUE`},
		"m": {file(`"hook":{"path":"/bin/true","args":["a\u0000b"]}`, when, atStop), "hook.args: has a null character"},
		"n": {file(hook, atStop), "when: is missing"},
		"o": {file(hook, `"when":{}`, atStop), "when: has no condition"},
		"p": {file(hook, `"when":{"annotation":{"a":"b"}}`, atStop), `when: json: unknown field "annotation"`},
		"q": {file(hook, `"when":{"annotations":{"(":"b"}}`, atStop), `when.annotations["("]: error parsing regexp`},
		"r": {file(hook, `"when":{"annotations":{"a":"["}}`, atStop), `when.annotations["a"]: error parsing regexp`},
		"s": {file(hook, `"when":{"commands":["a","*"]}`, atStop), "when.commands[1]: error parsing regexp"},
		"t": {file(hook, `"when":{"commands":"a"}`, atStop), "when.commands: string instead of"},
		"u": {file(hook, when), "stages: is missing"},
		"v": {file(hook, when, `"stages":["poststop","precreate"]`), `stages[1]: "precreate": want one of createContainer`},
		"w": {file(`"hook":{"path":"x"}`, `"when":{"commands":["("]}`, `"stages":["never"]`), "stages[0]"},
		"x": {strings.Repeat(" ", maxFile+1), "longer than"},
		"y": {"null", "version: is missing"},
	}
	for name, w := range wanted {
		put(t, filepath.Join(dir, name+".json"), w.content)
	}
	if err := os.Mkdir(filepath.Join(dir, "z.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/no/such/file", filepath.Join(dir, "zz.json")); err != nil {
		t.Fatal(err)
	}
	wanted["z"], wanted["zz"] = struct{ content, fault string }{"", "not a regular file"}, struct{ content, fault string }{"", "does not exist"}
	hooks, faults := new(Reader).Read([]string{dir})
	if got := argumentsOf(hooks, &Container{})["poststop"]; !slices.Equal(got, []string{"good"}) {
		t.Errorf("hooks of good files: %q", got)
	}
	got := map[string]string{}
	for _, f := range faults {
		got[strings.TrimSuffix(filepath.Base(f.Path), ".json")] = f.Err.Error()
	}
	for name, w := range wanted {
		if !strings.Contains(got[name], w.fault) {
			t.Errorf("%s.json: %q, want %q", name, got[name], w.fault)
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("%d faults, want %d", len(got), len(wanted))
	}
	err := Join(faults)
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), filepath.Join(dir, "a.json")) || !strings.Contains(err.Error(), fmt.Sprintf("and %d more", len(wanted)-3)) {
		t.Errorf("the error is %v", err)
	}
	if Join(nil) != nil {
		t.Error("no fault is an error")
	}
}

// TestProgramInTheContainer: the program of startContainer alone need not be on the host.
func TestProgramInTheContainer(t *testing.T) {
	dir := write(t, map[string]string{"x.json": strings.ReplaceAll(always("x", startContainer), "/bin/true", "/in/the/container")})
	if hooks, faults := new(Reader).Read([]string{dir}); len(faults) > 0 || len(hooks) != 1 {
		t.Errorf("%v, %d hooks", faults, len(hooks))
	}
}

// TestChangesAreSeen: a Reader follows files that appear, change, become bad and good, and go.
func TestChangesAreSeen(t *testing.T) {
	dir := write(t, nil)
	var r Reader
	path := filepath.Join(dir, "x.json")
	want := func(arguments []string, faults int) {
		t.Helper()
		hooks, found := r.Read([]string{dir})
		if got := argumentsOf(hooks, &Container{})["prestart"]; !slices.Equal(got, arguments) || len(found) != faults {
			t.Errorf("hooks %q and faults %v, want %q and %d", got, found, arguments, faults)
		}
	}
	want(nil, 0)
	put(t, path, always("one", "prestart"))
	want([]string{"one"}, 0)
	put(t, path, always("two", "prestart"))
	// The same size, and on some filesystems the same time.
	if err := os.Chtimes(path, time.Now(), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	want([]string{"two"}, 0)
	put(t, path, "{")
	want(nil, 1)
	want(nil, 1)
	put(t, path, always("three", "prestart"))
	want([]string{"three"}, 0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want(nil, 0)

	// A program that goes and comes back, while its file stays.
	program := filepath.Join(dir, "program")
	put(t, path, strings.ReplaceAll(always("x", "prestart"), "/bin/true", program))
	want(nil, 1)
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	want([]string{"x"}, 0)
}

func TestDirectoryThatCannotBeRead(t *testing.T) {
	file := filepath.Join(write(t, map[string]string{"x": ""}), "x")
	if _, faults := new(Reader).Read([]string{file}); len(faults) != 1 || faults[0].Path != file {
		t.Errorf("faults %v", faults)
	}
}

// FuzzFile: a file is refused with a field or a place, or its hook has a program and known stages.
func FuzzFile(f *testing.F) {
	f.Add([]byte(always("x", "poststop")), "/bin/init", "key", "value")
	f.Add([]byte(`{"version":"1.0.0","hook":{"path":"/x"},"when":{"annotations":{"a":"b"},"commands":["c"],"hasBindMounts":true},"stages":[]}`), "c", "a", "b")
	f.Add([]byte(`{"version":"1.0.0","hook":{"path":"/x","timeout":-1},"when":null,"stages":null}`), "", "", "")
	f.Fuzz(func(t *testing.T, data []byte, command, key, value string) {
		d, err := parse(data)
		if err != nil {
			if d != nil {
				t.Errorf("%q is refused, and has a hook", data)
			}
			return
		}
		if !filepath.IsAbs(d.hook.Path) || d.hook.Timeout != nil && *d.hook.Timeout <= 0 {
			t.Errorf("%q has become %+v", data, d.hook)
		}
		spec := &specs.Spec{}
		Hooks{d}.Inject(spec, &Container{Annotations: map[string]string{key: value}, Command: command})
		if spec.Hooks == nil {
			return
		}
		n := 0
		for _, list := range stages(spec.Hooks) {
			n += len(*list)
		}
		if n != len(d.stages) {
			t.Errorf("%q has %d stages and made %d hooks", data, len(d.stages), n)
		}
	})
}
