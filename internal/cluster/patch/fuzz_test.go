package patch

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzPatches: any patches in a cluster file are either refused, with an error that blames the
// author, or give a document that can be written and read back.
func FuzzPatches(f *testing.F) {
	const config = "version = 3\n[a]\nb = 5\nc = [1, 2]\nd = 1979-05-27T07:32:00Z\n"
	f.Add(v1beta3, "kind: ClusterConfiguration\napiServer: {extraArgs: [{name: v, value: \"2\"}]}\n", `[{op: replace, path: /networking/podSubnet, value: 5.0}]`, config, "[a]\nb = 6\n")
	f.Add(v1beta4, "kind: ClusterConfiguration\napiServer: {extraArgs: {v: null}}\n", `[{"op":"copy","from":"/apiServer","path":"/networking"},{"op":"test","path":"/kind","value":null}]`, "version = 2\n", "version = 2\nversion2 = {}\n")
	f.Add("kind: x\n", "kind: x\na: {b: null}\n", `[{"op":"add","path":"/-"},{"op":"move","from":"","path":""},{"op":"remove","path":"/~2"}]`, "version = 1e9", "[[a]]\n")
	f.Fuzz(func(t *testing.T, docs, merge, ops, config, tomlMerge string) {
		if text, err := TOML(config, []string{tomlMerge}, []string{ops}); err != nil {
			blames(t, err)
		} else if err := CheckTOML(text); err != nil {
			t.Errorf("%q became %q: %v", config, text, err)
		}
		parsed, err := Parse(docs)
		if err != nil {
			blames(t, err)
			return
		}
		merges, err := ParseMerge(merge)
		if err != nil {
			blames(t, err)
			return
		}
		patch, err := ParseJSON6902("", "", "ClusterConfiguration", ops)
		if err != nil {
			blames(t, err)
			return
		}
		patched, err := Apply(parsed, merges, []JSON6902{patch})
		if err != nil {
			blames(t, err)
			return
		}
		text, err := Render(patched)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse(text); err != nil || len(again) > len(patched) {
			t.Errorf("%q became %q: %v", docs, text, err)
		}
	})
}

func blames(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, errs.Invalid) {
		t.Errorf("%v blames nobody", err)
	}
}
