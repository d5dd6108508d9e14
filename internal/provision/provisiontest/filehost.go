package provisiontest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// FileHost is a read-only machine that has only files.
type FileHost struct {
	provision.Host
	// Content maps the paths of files to their content.
	Content map[string]string
	// OnRun answers Run. Without it the host is not live.
	OnRun func(args []string) (string, error)
}

// Live reports whether OnRun is set.
func (h FileHost) Live() bool { return h.OnRun != nil }

// Files are those of Content.
func (h FileHost) Files() provision.Files { return contentFiles{content: h.Content} }

// Kernel has nothing mounted.
func (FileHost) Kernel() provision.Kernel { return New().Kernel() }

// Run calls OnRun.
func (h FileHost) Run(_ context.Context, cmd provision.Command) ([]byte, error) {
	out, err := h.OnRun(cmd.Args)
	return []byte(out), err
}

// contentFiles are the files of a FileHost.
type contentFiles struct {
	provision.Files
	content map[string]string
}

func (f contentFiles) Stat(name string) (provision.FileInfo, error) {
	if _, ok := f.content[name]; !ok {
		return provision.FileInfo{}, errs.NotFound
	}
	return provision.FileInfo{}, nil
}

func (f contentFiles) Open(name string) (io.ReadCloser, error) {
	content, ok := f.content[name]
	if !ok {
		return nil, errs.NotFound
	}
	return io.NopCloser(strings.NewReader(content)), nil
}

func (f contentFiles) ReadDir(dir string) ([]string, error) {
	var names []string
	for file := range f.content {
		if rest, ok := strings.CutPrefix(file, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errs.NotFound
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Digest reads files of the machine that the test runs on.
func (f contentFiles) Digest(name string) (string, error) {
	data, err := os.ReadFile(name)
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data)), err
}
