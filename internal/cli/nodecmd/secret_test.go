package nodecmd

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/cli/nodecmd/planview"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

const (
	oldSecret = "hunter2-old"
	newSecret = "hunter3-new"
)

// secretTarget has files that are protected in every possible way. Each contains content.
func secretTarget(content string) provision.Target {
	return provision.Target{Tasks: []provision.Task{
		tasks.File{Path: "/etc/app/token", Content: content, Mode: 0o600},
		tasks.File{Path: "/etc/app/group", Content: content + "\n", Mode: 0o640},
		tasks.File{Path: "/etc/app/flagged", Content: content + "\n\n", Mode: 0o600, Secret: true},
		tasks.File{Path: "/etc/app/opened", Content: "for all\n", Mode: 0o644}, // was 0600
		tasks.File{Path: "/etc/closed/plain", Content: content + "\n\n\n\n", Mode: 0o644},
		tasks.JSONKeys{Path: "/etc/app/keys.json", Set: map[string]any{"auth": content}, Mode: 0o600},
		tasks.JSONKeys{Path: "/etc/app/open.json", Set: map[string]any{
			"registry-token": content, "proxies": map[string]any{"http-proxy": "http://user:" + content + "@proxy.example:3128"},
		}},
		tasks.File{Path: "/etc/app/open.key", Content: keyFile(content), Mode: 0o644},
		tasks.File{Path: "/etc/app/open.toml", Content: "Authorization = \"Basic " + content + "\"\n" + `{"auths": {"a.example": {"auth": "` + content + "\"}}}\n" +
			"authorization: Bearer " + content + "\napi_key = " + content + "\nclient-key-data: " + content + "\nsecret_access_key=" + content + "\nauthorization: {mode: shown}\n"},
		tasks.File{Path: "/etc/app/open.conf", Content: "password = " + content + "\nurl = http://user:" + content + "@a.example\nplain = shown\n"},
	}}
}

// keyFile returns a private key whose second line is content.
func keyFile(content string) string {
	const line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n"
	return "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat(line, 5) + content + "\n" + strings.Repeat(line, 5) + "-----END PRIVATE KEY-----\n"
}

// leaks fails the test if a text contains a secret, or a digest from which a short secret can be
// found.
func leaks(t *testing.T, what, text string) {
	t.Helper()
	for _, content := range []string{oldSecret, newSecret} {
		for tail := ""; len(tail) < 5; tail += "\n" {
			for _, secret := range []string{content, digest.FromString(content + tail).Encoded()} {
				if strings.Contains(text, secret) {
					t.Errorf("%s has %q:\n%s", what, secret, text)
					return
				}
			}
		}
	}
}

// TestSecretsAreNotShown: a file that not every user may read, or a credential in another file, is
// shown as changed, with size and fingerprint only. This holds for the text and the JSON of each
// command.
func TestSecretsAreNotShown(t *testing.T) {
	host := provisiontest.New()
	files := host.Files()
	for dir, mode := range map[string]uint32{"/etc/app": 0o755, "/etc/closed": 0o700} {
		if err := files.Mkdir(dir, provision.Attr{Mode: fs.FileMode(mode)}); err != nil {
			t.Fatal(err)
		}
	}
	// The files existed before berth.
	for name, mode := range map[string]uint32{
		"/etc/app/token": 0o600, "/etc/app/group": 0o640, "/etc/app/flagged": 0o600, "/etc/app/opened": 0o600, "/etc/closed/plain": 0o644,
	} {
		if err := files.Write(name, strings.NewReader("hunter0"), provision.Attr{Mode: fs.FileMode(mode)}); err != nil {
			t.Fatal(err)
		}
	}
	e, err := reconciler.New(reconciler.Config{Host: host, Kinds: tasks.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	shows := func(what string, value any, print func(w *bytes.Buffer) error) string {
		t.Helper()
		var text bytes.Buffer
		if print != nil {
			if err := print(&text); err != nil {
				t.Fatal(err)
			}
		}
		data, err := json.MarshalIndent(value, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		for _, shown := range []string{text.String(), string(data)} {
			leaks(t, what, shown)
			if strings.Contains(shown, "hunter0") || strings.Contains(shown, digest.FromString("hunter0").Encoded()) {
				t.Errorf("%s shows what was there before:\n%s", what, shown)
			}
		}
		return text.String()
	}
	plan := func(what, content string) string {
		t.Helper()
		p, err := e.Plan(t.Context(), secretTarget(content))
		if err != nil {
			t.Fatal(err)
		}
		shown, err := e.Shown(p)
		if err != nil {
			t.Fatal(err)
		}
		return shows(what, shown, func(w *bytes.Buffer) error { return planview.Plan(w, shown) })
	}
	first := plan("the first plan", oldSecret)
	for _, want := range []string{"content: 7 bytes, ", "→ 11 bytes, ", "plain = shown", "{mode: shown}"} {
		if !strings.Contains(first, want) {
			t.Errorf("the plan lacks %q:\n%s", want, first)
		}
	}
	if _, err := e.Apply(t.Context(), secretTarget(oldSecret), reconciler.ApplyOptions{NodeFile: []byte(oldSecret)}); err != nil {
		t.Fatal(err)
	}
	plan("the second plan", newSecret)
	if _, err := e.Apply(t.Context(), secretTarget(newSecret), reconciler.ApplyOptions{NodeFile: []byte(newSecret)}); err != nil {
		t.Fatal(err)
	}
	back, err := e.PlanRollback(t.Context(), 1, provision.Target{})
	if err != nil {
		t.Fatal(err)
	}
	text := shows("a rollback", back, func(w *bytes.Buffer) error { return planview.Back(w, back) })
	if want := "content: 11 bytes, "; !strings.Contains(text, want) {
		t.Errorf("the way back lacks %q:\n%s", want, text)
	}
	unwanted, err := e.Plan(t.Context(), provision.Target{})
	if err != nil {
		t.Fatal(err)
	}
	if unwanted, err = e.Shown(unwanted); err != nil || len(unwanted.Unwanted) == 0 {
		t.Fatal(err, unwanted)
	}
	shows("a plan without the files", unwanted, func(w *bytes.Buffer) error { return planview.Plan(w, unwanted) })
	for _, entry := range e.Journal().History() {
		shown, err := e.ShownEntry(entry)
		if err != nil {
			t.Fatal(err)
		}
		shows("the history", shown, func(w *bytes.Buffer) error { return printEntry(w, shown) })
	}
}

// TestNodeFileOfTheHistory: credentials are hidden in settings for which berth has no field, too.
func TestNodeFileOfTheHistory(t *testing.T) {
	wish := "apiVersion: berth.run/v1alpha1\nkind: Node\nruntime:\n  name: containerd\n  config:\n    additions:\n      a.registry.auth: " + oldSecret + "\n      a.max: 5\n"
	text, err := redacted(provisiontest.New(), []byte(wish))
	if err != nil {
		t.Fatal(err)
	}
	leaks(t, "the node file", string(text))
	if !strings.Contains(string(text), "a.registry.auth: (11 bytes, ") || !strings.Contains(string(text), "a.max: 5\n") {
		t.Errorf("got\n%s", text)
	}
}
