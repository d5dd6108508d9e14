package lookaside

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
)

func dirOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBase(t *testing.T) {
	c, err := Read(dirOf(t, map[string]string{
		"a.yaml": "default-docker:\n  lookaside: https://all.test\ndocker:\n  r.test:\n    sigstore: https://old.test\n  r.test/team:\n    use-sigstore-attachments: true\n",
		"b.yaml": "docker:\n  r.test/team/app:1:\n    lookaside: file:///one\n    sigstore: https://not.test\n  Caps.test:443/a:\n    lookaside: https://caps.test\n",
		"c.txt":  "-",
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		scopes []string
		want   string
	}{
		{[]string{"r.test/team/app:1", "r.test/team/app", "r.test/team", "r.test"}, "file:///one"},
		{[]string{"r.test/team/app:2", "r.test/team/app", "r.test/team", "r.test"}, "https://old.test"},
		{[]string{"x.test/app", "x.test"}, "https://all.test"},
		{[]string{"caps.test/a/b:1", "caps.test/a/b", "caps.test/a"}, "https://caps.test"},
	} {
		if got := c.Base(test.scopes); got != test.want {
			t.Errorf("%v: %s, want %s", test.scopes, got, test.want)
		}
	}
	none, err := Read(filepath.Join(t.TempDir(), "absent"))
	if err != nil || none.Base([]string{"r.test"}) != fallback {
		t.Errorf("without a directory: %+v, %v", none, err)
	}
}

func TestWrongFiles(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"yaml":         {map[string]string{"a.yaml": "docker: ["}, "a.yaml: "},
		"type":         {map[string]string{"a.yaml": "docker: [1]"}, "a.yaml: "},
		"scheme":       {map[string]string{"a.yaml": "docker: {r.test: {lookaside: 'ftp://r.test'}}"}, `docker.r.test: "ftp://r.test": want file:///`},
		"relative":     {map[string]string{"a.yaml": "default-docker: {lookaside: 'file://dir/x'}"}, "default-docker: "},
		"twice":        {map[string]string{"a.yaml": "docker: {r.test: {}}", "b.yaml": "docker: {r.test: {}}"}, "a.yaml, too"},
		"other form":   {map[string]string{"a.yaml": "docker: {r.test: {}, 'R.test:443': {}}"}, "a.yaml, too"},
		"default":      {map[string]string{"a.yaml": "default-docker: {}", "b.yaml": "default-docker: {}"}, "a.yaml, too"},
		"large":        {map[string]string{"a.yaml": strings.Repeat("#", maxFile+1)}, "more than"},
		"not a file":   {map[string]string{}, "not a regular file"},
		"same section": {map[string]string{"a.yaml": "docker: {r.test: {}, r.test: {}}"}, "a.yaml: "},
	} {
		dir := dirOf(t, test.files)
		if len(test.files) == 0 {
			if err := os.Mkdir(filepath.Join(dir, "a.yaml"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Read(dir); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestFetch(t *testing.T) {
	repository, err := reference.ParseNormalizedNamed("r.test/team/app")
	if err != nil {
		t.Fatal(err)
	}
	dgst := digest.FromString("image")
	at := "/base/team/app@sha256=" + dgst.Encoded() + "/signature-"
	var answers map[string]http.HandlerFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		answer(w, r)
	}))
	defer server.Close()
	text := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	fetch := func(most int, some map[string]http.HandlerFunc) ([]Signature, error) {
		answers = some
		got := 0
		found, err := Fetch(t.Context(), server.URL+"/base", repository, dgst, most, func() { got++ })
		if got != len(found) && err == nil {
			t.Errorf("%d signatures were reported, of %d", got, len(found))
		}
		return found, err
	}
	some := map[string]http.HandlerFunc{at + "1": text("one"), at + "2": text(strings.Repeat("x", maxSignature+1)), at + "3": text("three"), at + "5": text("five")}
	found, err := fetch(9, some)
	if err != nil || len(found) != 3 || string(found[0].Data) != "one" || !strings.Contains(found[1].Fault, "more than") || string(found[2].Data) != "three" ||
		found[0].Place != server.URL+at+"1" {
		t.Errorf("found %d, %v", len(found), err)
	}
	if found, err = fetch(1, some); err != nil || len(found) != 1 {
		t.Errorf("of many: %d, %v", len(found), err)
	}
	if found, err = fetch(0, some); err != nil || len(found) != 0 {
		t.Errorf("of none: %d, %v", len(found), err)
	}
	if found, err = fetch(9, nil); err != nil || len(found) != 0 {
		t.Errorf("without any: %d, %v", len(found), err)
	}
	for name, answer := range map[string]http.HandlerFunc{
		"fails":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"refuses": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		},
	} {
		if _, err = fetch(9, map[string]http.HandlerFunc{at + "1": answer}); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), at+"1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	moved := map[string]http.HandlerFunc{
		at + "1": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/moved", http.StatusFound) }, "/moved": text("moved"),
	}
	if found, err = fetch(1, moved); err != nil || len(found) != 1 || string(found[0].Data) != "moved" {
		t.Errorf("a redirect to the same host: %+v, %v", found, err)
	}
}

// FuzzRead: a file that is read has bases that can be used.
func FuzzRead(f *testing.F) {
	f.Add([]byte("docker: {r.test: {lookaside: 'https://s.test'}}\ndefault-docker: {sigstore: 'file:///x'}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Read(dir)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Error(err)
			}
			return
		}
		if _, err := parse(c.Base([]string{"r.test"})); err != nil {
			t.Error(err)
		}
	})
}
