package provider

import (
	"archive/tar"
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// TestPacked: files are unpacked first. The command gets its own arguments, and its standard input
// is empty.
func TestPacked(t *testing.T) {
	files := []File{{Path: "/etc/a b", Mode: 0o600, Content: []byte("one")}, {Path: "/run/c", Content: []byte("two")}}
	for _, c := range []struct {
		command Command
		does    string
	}{
		{Command{Files: files}, "write /etc/a b, /run/c"},
		{Command{Files: files, Args: []string{"sh", "-c", `echo "$0" "$1"; cat`, "it's", "$HOME *"}}, "run sh -c"},
	} {
		if got := c.command.String(); got != c.does {
			t.Errorf("it does %q, want %q", got, c.does)
		}
		packed, err := c.command.Packed()
		if err != nil || packed.Files != nil {
			t.Fatalf("%v, %v", packed, err)
		}
		archive, err := io.ReadAll(packed.Stdin)
		if err != nil {
			t.Fatal(err)
		}
		r := tar.NewReader(bytes.NewReader(archive))
		for _, want := range files {
			header, err := r.Next()
			if err != nil || "/"+header.Name != want.Path {
				t.Fatalf("%v, %v; want %s", header, err, want.Path)
			}
			if content, err := io.ReadAll(r); err != nil || !bytes.Equal(content, want.Content) {
				t.Errorf("%s is %q, %v", want.Path, content, err)
			}
		}
		if len(c.command.Args) == 0 {
			continue
		}
		// The same command in a directory of the test, where tar unpacks the files.
		dir := t.TempDir()
		packed.Args[2] = strings.Replace(packed.Args[2], "--directory=/", "--directory="+dir, 1)
		run := exec.CommandContext(t.Context(), packed.Args[0], packed.Args[1:]...)
		run.Stdin = bytes.NewReader(archive)
		if out, err := run.CombinedOutput(); err != nil || string(out) != "it's $HOME *\n" {
			t.Errorf("it said %q, %v", out, err)
		}
		if out, err := exec.CommandContext(t.Context(), "stat", "-c", "%a %n", dir+"/etc/a b", dir+"/run/c").Output(); err != nil || string(out) != "600 "+dir+"/etc/a b\n644 "+dir+"/run/c\n" {
			t.Errorf("files are %q, %v", out, err)
		}
	}
	plain := Command{Args: []string{"true"}, Stdin: strings.NewReader("in")}
	if packed, err := plain.Packed(); err != nil || packed.Stdin != plain.Stdin || len(packed.Args) != 1 {
		t.Errorf("without files: %v, %v", packed, err)
	}
}
