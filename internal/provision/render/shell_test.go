package render

import (
	"os/exec"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"mvdan.cc/sh/v3/syntax"

	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestEveryScriptIsPOSIX: scripts, and the one that cloud-init builds from runcmd, use no words of
// other shells.
func TestEveryScriptIsPOSIX(t *testing.T) {
	for release, text := range map[string]string{"debian 12": "runtime: {name: containerd}\n" + own, "rocky 9": archives, "fedora 44": "runtime: {name: docker}\n"} {
		in := input(t, release, text, fetched)
		script, err := Script(in)
		if err != nil {
			t.Fatal(err)
		}
		cloud, err := CloudInit(in)
		if err != nil {
			t.Fatal(err)
		}
		var config cloudConfig
		if err := yaml.Unmarshal(cloud.Text, &config); err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string]string{
			"script": string(script.Text), "runcmd": strings.Join(config.RunCmd, "\n"), "bootcmd": strings.Join(config.BootCmd, "\n"),
		} {
			if _, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(text), what); err != nil {
				t.Errorf("%s: %v", release, err)
			}
		}
	}
}

func TestQuote(t *testing.T) {
	for _, word := range []string{
		"", "plain", "two words", "it's", `"$HOME" $(x) ` + "`y`", `\`, `'\''`, "*", "~", "-n", "#", "a\nb\n.", "ü", "!", "&;|<>", "a=b", "[x]", "{a,b}",
	} {
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q became %s, which is %q: %v", word, quote(word), out, err)
		}
	}
}

// FuzzPut: for any content of a file, the shell writes the same content.
func FuzzPut(f *testing.F) {
	for _, content := range []string{"", "\n", "text\n", "no end", "END\n", "END\nEND_\n", "\x00\xff", "$x `y` \\\n", "\r\n", "a\tb\n", "E\xcf\x94\n", "\u00fc\n"} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		script := "coded() { base64 -d; }\nput() { cat; }\n" + put("put", tasks.File{Path: "/x", Content: content}) + "\n"
		cmd := exec.CommandContext(t.Context(), "/bin/sh")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.Output()
		if err != nil || string(out) != content {
			t.Errorf("%q became %q: %v\n%s", content, out, err, script)
		}
	})
}
