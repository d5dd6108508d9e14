package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Directories and files of the verb docs, below its -out.
const (
	manDir         = "man"
	completionDir  = "completion"
	defaultsOfUnit = "berth.toml"
)

// shells have completions: the word for berth, and the name of the file.
var shells = map[string]string{"bash": "berth", "zsh": "_berth", "fish": "berth.fish"}

// command is what `berth commands` prints.
type command struct {
	Use       string    `json:"use"`
	Short     string    `json:"short"`
	Long      string    `json:"long"`
	Example   string    `json:"example"`
	Runnable  bool      `json:"runnable"`
	Flags     []option  `json:"flags"`
	Inherited []option  `json:"inherited"`
	Commands  []command `json:"commands"`
}

// option is a flag of a command.
type option struct {
	Name      string `json:"name"`
	Shorthand string `json:"shorthand"`
	Usage     string `json:"usage"`
	Type      string `json:"type"`
	Default   string `json:"default"`
	Bare      string `json:"bare"`
}

// writeDocs asks a berth for its commands, completions and default configuration, and writes them
// with the man pages.
func writeDocs(o options) error {
	for _, dir := range []string{manDir, completionDir} {
		if err := os.RemoveAll(filepath.Join(o.out, dir)); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(o.out, dir), 0o755); err != nil {
			return err
		}
	}
	tree, err := ask(o.berth, "commands")
	if err != nil {
		return err
	}
	var root command
	if err := json.Unmarshal(tree, &root); err != nil {
		return fmt.Errorf("%s commands: %w", o.berth, err)
	}
	if err := manPages(root, o); err != nil {
		return err
	}
	for shell, name := range shells {
		text, err := ask(o.berth, "completion", shell)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(o.out, completionDir, name), text, 0o644); err != nil {
			return err
		}
	}
	text, err := ask(o.berth, "config", "default")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, defaultsOfUnit), text, 0o644)
}

func ask(program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return out, nil
}

// manPages writes a page for each command, one for the supervisor and one for the configuration.
func manPages(root command, o options) error {
	dir := filepath.Join(o.out, manDir)
	header := func(section string) *doc.GenManHeader {
		return &doc.GenManHeader{Section: section, Date: &o.date, Source: "berth " + o.version.text, Manual: "berth"}
	}
	cmd := root.cobra()
	if err := doc.GenManTree(cmd, header("8"), dir); err != nil {
		return fmt.Errorf("cannot write the man pages: %w", err)
	}
	for _, page := range []struct{ from, name string }{
		{"build/packages/berth-supervisor.8.md", "berth-supervisor.8"},
		{"docs/config.md", "berth.toml.5"},
	} {
		text, err := os.ReadFile(filepath.Join(o.source, page.from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, page.name), manPage(page.name, text, o.date, o.version), 0o644); err != nil {
			return err
		}
	}
	return compress(dir)
}

// manPage turns Markdown into a page. Its name is that of the file, such as berth.toml.5.
func manPage(name string, text []byte, date time.Time, v version) []byte {
	section := strings.TrimPrefix(filepath.Ext(name), ".")
	title := strings.ToUpper(strings.TrimSuffix(name, "."+section))
	head := fmt.Sprintf("%% %q %q %q %q %q\n", title, section, date.Format("Jan 2006"), "berth "+v.text, "berth")
	return md2man.Render(append([]byte(head), text...))
}

// compress replaces the files of a directory by compressed ones, as distributions have man pages.
func compress(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		file := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		small, err := zipped(text)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file+".gz", small, 0o644); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

// zipped compresses a file without its name and date, so the result depends on the content alone.
func zipped(text []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// cobra turns the data into a tree of commands, from which cobra makes pages. They run nothing.
func (c command) cobra() *cobra.Command {
	cmd := &cobra.Command{Use: c.Use, Short: c.Short, Long: c.Long, Example: c.Example, DisableAutoGenTag: true}
	cmd.CompletionOptions.DisableDefaultCmd = true // the data has it
	cmd.SetHelpCommand(&cobra.Command{Use: "help", Hidden: true})
	if c.Runnable {
		cmd.Run = func(*cobra.Command, []string) {}
	}
	for _, f := range c.Flags {
		flag := cmd.Flags().VarPF(&shown{f.Type, f.Default}, f.Name, f.Shorthand, f.Usage)
		flag.NoOptDefVal = f.Bare
	}
	for _, f := range c.Inherited {
		flag := cmd.PersistentFlags().VarPF(&shown{f.Type, f.Default}, f.Name, f.Shorthand, f.Usage)
		flag.NoOptDefVal = f.Bare
	}
	for _, sub := range c.Commands {
		if name, _, _ := strings.Cut(sub.Use, " "); name != "help" {
			cmd.AddCommand(sub.cobra())
		}
	}
	return cmd
}

// shown is the value of a flag that is only described.
type shown struct{ kind, value string }

func (s *shown) String() string   { return s.value }
func (s *shown) Set(string) error { return nil }
func (s *shown) Type() string     { return s.kind }
