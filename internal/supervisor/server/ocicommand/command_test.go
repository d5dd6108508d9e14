package ocicommand

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
)

func writeLog(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLastError(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		`{"level":"error","msg":"first"}` + "\n" + `{"level":"error","msg":"second"}` + "\n": "second",
		`{"level":"error","msg":"first"}` + "\n" + `{"level":"warning","msg":"second"}`:      "first",
		`{"level":"fatal","msg":"end"}` + "\nsoup\n{}\n[]":                                   "end",
		`{"msg":"crun has levels, others may not"}`:                                          "crun has levels, others may not",
		"\x00\x01": "",
		strings.Repeat("x", 3*maxOutput) + "\n" + `{"level":"error","msg":"late"}`:                 "late",
		`{"level":"error","msg":"` + strings.Repeat("y", 2*maxError) + `"}`:                        strings.Repeat("y", maxError) + "...",
		`{"level":"error","msg":"early"}` + "\n" + strings.Repeat(`{"level":"debug"}`+"\n", 10000): "",
	} {
		if got := lastError(writeLog(t, text)); got != want {
			t.Errorf("%.60q: %q, want %q", text, got, want)
		}
	}
	if got := lastError("/no/such/file"); got != "" {
		t.Errorf("no log: %q", got)
	}
}

// FuzzLog: whatever a program writes to its log, an error has a short text of it.
func FuzzLog(f *testing.F) {
	f.Add([]byte(`{"level":"error","msg":"no","time":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte("{\"msg\":\"\\ud800\"}\n\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text := lastError(writeLog(t, string(data)))
		if len(text) > 3*(maxError+3) || !utf8.ValidString(text) {
			t.Errorf("%d bytes, %q", len(text), text)
		}
	})
}

func TestOutputKeepsItsEnd(t *testing.T) {
	var b launch.Bounded
	for range 10 {
		if n, err := b.Write([]byte(strings.Repeat("a", maxOutput/4))); n != maxOutput/4 || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := b.Write([]byte("\nlast \n\n")); err != nil || len(b.Bytes()) != maxOutput || lastLine(b.Bytes()) != "last" {
		t.Errorf("%d bytes that end in %q, %v", len(b.Bytes()), lastLine(b.Bytes()), err)
	}
}

func TestArguments(t *testing.T) {
	r := &Runtime{program: Program{Path: "/p", Args: []string{"--debug"}, Root: "/r"}}
	got := r.arguments(true, "/l", "start", "id")
	if want := strings.Fields("/p --debug --root /r --log /l --log-format json --systemd-cgroup start id"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if r.arguments(false, "/l"); len(r.program.Args) != 1 {
		t.Errorf("the program's arguments have changed: %q", r.program.Args)
	}
}

func TestGroups(t *testing.T) {
	v1, v2 := map[string]string{"freezer": "berth-exec-x"}, map[string]string{"": "berth-exec-x"}
	for have, want := range map[groups][2]bool{
		{}:                             {false, false},
		{any: true}:                    {false, true},
		{any: true, controllers: true}: {true, true},
	} {
		if got := [2]bool{have.all(v1), have.all(v2)}; got != want {
			t.Errorf("%+v: %v, want %v", have, got, want)
		}
	}
	if got := strings.Join(groupArguments(v1), " "); got != "--cgroup freezer:berth-exec-x" {
		t.Error(got)
	}
	if got := strings.Join(groupArguments(v2), " "); got != "--cgroup berth-exec-x" {
		t.Error(got)
	}
}
