package provider

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/berthrun/berth/internal/cluster/provider/command"
)

// Exec runs a command in a container. Its error quotes the command's last lines.
func (e *CLI) Exec(ctx context.Context, name string, c Command) error {
	what := c.String()
	c, err := c.Packed()
	if err != nil {
		return fmt.Errorf("cannot %s in %s: %w", what, name, err)
	}
	args := []string{"exec", "--privileged"}
	if c.Stdin != nil {
		args = append(args, "-i")
	}
	args = pairs(args, "-e", c.Env)
	args = append(append(args, name), c.Args...)
	if err := e.run.Run(ctx, command.Call{Args: args, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Raw: c.Raw, Guest: true}); err != nil {
		return fmt.Errorf("cannot %s in %s: %w", what, name, err)
	}
	return nil
}

// String says what the command does, for errors.
func (c Command) String() string {
	if len(c.Args) > 0 {
		return "run " + strings.Join(c.Args[:min(2, len(c.Args))], " ")
	}
	var paths []string
	for _, f := range c.Files {
		paths = append(paths, f.Path)
	}
	return "write " + strings.Join(paths, ", ")
}

// Packed is the command that an engine runs. It passes the files as an archive on standard input to
// tar in the container first. The engines' own `cp` does not see mounts on /run and /tmp, and needs
// another call of the engine.
func (c Command) Packed() (Command, error) {
	if len(c.Files) == 0 {
		return c, nil
	}
	archive, err := pack(c.Files)
	if err != nil {
		return Command{}, err
	}
	unpack := []string{"tar", "--extract", "--file=-", "--directory=/", "--no-same-owner", "--same-permissions"}
	if len(c.Args) == 0 {
		c.Args = unpack
	} else {
		c.Args = append([]string{"sh", "-c", strings.Join(unpack, " ") + ` && exec "$@"`, "sh"}, c.Args...)
	}
	c.Files, c.Stdin = nil, archive
	return c, nil
}

// pack writes files into an archive.
func pack(files []File) (*bytes.Buffer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		header := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: mode, Size: int64(len(f.Content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return &archive, w.Close()
}

// Logs copies a container's log.
func (e *CLI) Logs(ctx context.Context, name string, to io.Writer) error {
	w := &shared{to: to}
	if err := e.run.Run(ctx, command.Call{Args: []string{"logs", name}, Stdout: w, Stderr: w, Guest: true}); err != nil {
		return fmt.Errorf("cannot read the log of %s: %w", name, err)
	}
	return nil
}

// Describe writes what the engine reports about a container, or for "" about itself.
func (e *CLI) Describe(ctx context.Context, name string, to io.Writer) error {
	args := []string{"info"}
	if name != "" {
		args = []string{"container", "inspect", name}
	}
	if err := e.run.Run(ctx, command.Call{Args: args, Stdout: to}); err != nil {
		return fmt.Errorf("cannot describe %s: %w", strings.Join(args, " "), err)
	}
	return nil
}
