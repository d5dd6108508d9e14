// Package bundle collects what helps to find a fault of a berth into an archive, without secrets. Each source has a time
// and a size; what fails or hangs is named in the manifest and stops no other.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/cli/debugcmd/hide"
	"github.com/berthrun/berth/internal/errs"
)

// Format says how secrets are found in a file.
type Format int

// The formats.
const (
	Text Format = iota
	JSON
	TOML
	// Binary has no secrets by its nature: a profile.
	Binary
)

// Limits of a bundle.
const (
	// maxFile bounds a file, maxRead what is read of its source.
	maxFile = 8 << 20
	maxRead = 32 << 20
	// maxTotal bounds all files together, uncompressed.
	maxTotal = 96 << 20
	// sourceTime bounds a source, and totalTime all of them.
	sourceTime = 15 * time.Second
	totalTime  = 2 * time.Minute
)

// Source is one kind of content.
type Source struct {
	// Name is what the manifest calls it.
	Name string
	// Time is how long it may take, 0 for sourceTime.
	Time time.Duration
	// Collect calls add with each file. An error of add is a reason to end.
	Collect func(ctx context.Context, add Add) error
}

// Add takes a file of a source. name is its path in the bundle.
type Add func(name string, format Format, content []byte) error

// Manifest says what a bundle has, and what it lacks.
type Manifest struct {
	Made    time.Time `json:"made"`
	Version string    `json:"version"`
	// Hidden explains what is not there on purpose.
	Hidden  string   `json:"hidden"`
	Files   []File   `json:"files"`
	Missing []Lacked `json:"missing"`
}

// File is one file of a bundle.
type File struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	// Cut is how many bytes are left out at the beginning of a log, or at the end of another file.
	Cut int `json:"cut,omitempty"`
}

// Lacked is a source that failed, with what it had until then.
type Lacked struct {
	Source string `json:"source"`
	Why    string `json:"why"`
}

// archive is a bundle that is written.
type archive struct {
	mu       sync.Mutex
	tar      *tar.Writer
	dir      string
	hide     *hide.Hider
	manifest Manifest
	total    int
	fault    error
}

// Write collects the sources in their order and writes a tar.gz. The error is one of the writer or of ctx: faults of
// sources are in the manifest.
func Write(ctx context.Context, to io.Writer, name, version string, sources []Source) (*Manifest, error) {
	zipped := gzip.NewWriter(to)
	a := &archive{tar: tar.NewWriter(zipped), dir: name, hide: hide.New(), manifest: Manifest{
		Made: time.Now().UTC().Truncate(time.Second), Version: version, Files: []File{}, Missing: []Lacked{},
		Hidden: "values of environment variables, arguments of containers, and what looks like a password, a token or a key",
	}}
	bounded, cancel := context.WithTimeout(ctx, totalTime)
	defer cancel()
	for _, source := range sources {
		if err := a.collect(bounded, source); err != nil {
			a.manifest.Missing = append(a.manifest.Missing, Lacked{source.Name, a.hide.Text(errs.Message(err))})
		}
		if err := context.Cause(ctx); err != nil {
			return nil, fmt.Errorf("cannot complete the bundle: %w", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	text, err := json.MarshalIndent(a.manifest, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot write the manifest: %w", err)
	}
	a.put("manifest.json", append(text, '\n'))
	if err := errors.Join(a.fault, a.tar.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("cannot write the bundle: %w", err)
	}
	return &a.manifest, nil
}

// collect runs a source. One that does not end in its time is left alone: a file system may hang, and then nothing
// ends the call.
func (a *archive) collect(ctx context.Context, source Source) error {
	limit := source.Time
	if limit == 0 {
		limit = sourceTime
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s: %w", limit, errs.Deadline))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- errs.Guard(source.Name, func() error {
			return source.Collect(ctx, func(name string, format Format, content []byte) error {
				return a.add(ctx, name, format, content)
			})
		})
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Second): // most calls end with their context
			return context.Cause(ctx)
		}
	}
}

// add hides the secrets of a file and writes it, if its source still has time.
func (a *archive) add(ctx context.Context, name string, format Format, content []byte) error {
	whole := len(content)
	if whole > maxFile && format == JSON {
		format = Text // secrets are found by names, which a part of it may lack
		content = fmt.Appendf(nil, "%d bytes of JSON are too many for a bundle\n", whole)
	} else if whole > maxFile && format != Binary {
		content = part(name, content)
	}
	file := File{Name: name, Cut: max(whole-len(content), 0)}
	switch format {
	case JSON:
		content = a.hide.JSON(content)
	case TOML:
		content = []byte(a.hide.TOML(string(content)))
	case Text:
		content = []byte(a.hide.Text(string(content)))
	}
	file.Bytes = len(content)
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if a.total+len(content) > maxTotal {
		return fmt.Errorf("%s has %d bytes, and a bundle at most %d: %w", name, len(content), maxTotal, errs.Exhausted)
	}
	a.manifest.Files = append(a.manifest.Files, file)
	a.put(name, content)
	return a.fault
}

// part is what is taken of a text that is too long, from a whole line on: of a log the end, of others the beginning.
func part(name string, content []byte) []byte {
	if !strings.HasPrefix(name, "logs/") {
		return content[:maxFile]
	}
	content = content[len(content)-maxFile:]
	if _, rest, found := bytes.Cut(content, []byte("\n")); found {
		return rest
	}
	return content
}

// put writes a file. a.mu is held.
func (a *archive) put(name string, content []byte) {
	if a.fault != nil {
		return
	}
	a.total += len(content)
	header := &tar.Header{
		Name: path.Join(a.dir, path.Clean("/"+name)), Mode: 0o600, Size: int64(len(content)), ModTime: a.manifest.Made, Typeflag: tar.TypeReg, Format: tar.FormatPAX,
	}
	if a.fault = a.tar.WriteHeader(header); a.fault == nil {
		_, a.fault = io.Copy(a.tar, bytes.NewReader(content))
	}
}
