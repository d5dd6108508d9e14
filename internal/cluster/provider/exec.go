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
func (e *Engine) Exec(ctx context.Context, name string, c Command) error {
	args := []string{"exec", "--privileged"}
	if c.Stdin != nil {
		args = append(args, "-i")
	}
	args = pairs(args, "-e", c.Env)
	args = append(append(args, name), c.Args...)
	if err := e.run.Run(ctx, command.Call{Args: args, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Guest: true}); err != nil {
		return fmt.Errorf("cannot run %s in %s: %w", strings.Join(c.Args[:min(2, len(c.Args))], " "), name, err)
	}
	return nil
}

// CopyTo sends files as one archive to tar in the container: the engines' own `cp` does
// not see what is mounted on /run and /tmp.
func (e *Engine) CopyTo(ctx context.Context, name string, files ...File) error {
	archive, err := Pack(files...)
	if err != nil {
		return fmt.Errorf("cannot pack files for %s: %w", name, err)
	}
	return e.Exec(ctx, name, Command{Args: Unpack(), Stdin: archive})
}

// Unpack is the command in a container that unpacks what Pack packs, from standard input.
func Unpack() []string {
	return []string{"tar", "--extract", "--file=-", "--directory=/", "--no-same-owner", "--same-permissions"}
}

// Pack makes an archive of files.
func Pack(files ...File) (*bytes.Buffer, error) {
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
func (e *Engine) Logs(ctx context.Context, name string, to io.Writer) error {
	w := &shared{to: to}
	if err := e.run.Run(ctx, command.Call{Args: []string{"logs", name}, Stdout: w, Stderr: w, Guest: true}); err != nil {
		return fmt.Errorf("cannot read the log of %s: %w", name, err)
	}
	return nil
}

// Describe writes what the engine tells of a container, or for "" of itself.
func (e *Engine) Describe(ctx context.Context, name string, to io.Writer) error {
	args := []string{"info"}
	if name != "" {
		args = []string{"container", "inspect", name}
	}
	if err := e.run.Run(ctx, command.Call{Args: args, Stdout: to}); err != nil {
		return fmt.Errorf("cannot describe %s: %w", strings.Join(args, " "), err)
	}
	return nil
}
