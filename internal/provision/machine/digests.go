package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

const (
	// keptSize is the least size of a file whose digest is kept over runs: smaller ones
	// are read as fast.
	keptSize = 256 << 10
	// settled is the age from which a later change is sure to change a file's stamp: the kernel's
	// clock of files ticks every few milliseconds.
	settled = 100 * time.Millisecond
)

// digests caches the digests of files by their stamps. A file of the machine keeps those of large
// files, so that binaries are not read again until they change.
type digests struct {
	file string // empty: nothing is kept

	mu    sync.Mutex
	kept  map[string]string // of runs before, by stamp; nil until it is needed
	known map[string]content
}

// content is a file as this run has read it.
type content struct {
	digest, path string
	size         int64
	// young: the file had just changed, and could change again with the same stamp.
	young bool
}

// get returns the digest for a stamp, "" when it is not known.
func (d *digests) get(f *files, path string, info provision.FileInfo) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.known[info.Stamp]; ok {
		return c.digest
	}
	if d.file == "" || info.Size < keptSize {
		return ""
	}
	if d.kept == nil {
		d.kept = f.readKept(d.file)
	}
	sum := d.kept[info.Stamp]
	if sum != "" {
		d.known[info.Stamp] = content{digest: sum, path: path, size: info.Size}
	}
	return sum
}

func (d *digests) put(path, sum string, info provision.FileInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[info.Stamp] = content{digest: sum, path: path, size: info.Size, young: time.Since(changed(info.Stamp)) < settled}
}

// changed is the time of a file's last change, out of its stamp.
func changed(stamp string) time.Time {
	var sec, nsec int64
	if _, err := fmt.Sscanf(stamp[strings.LastIndexByte(stamp, ':')+1:], "%d.%d", &sec, &nsec); err != nil {
		return time.Now() // as young as can be
	}
	return time.Unix(sec, nsec)
}

// readKept reads the digests that earlier runs kept. Without them, the files are read.
func (f *files) readKept(name string) map[string]string {
	kept := map[string]string{}
	r, err := f.Open(name)
	if err != nil {
		return kept
	}
	defer r.Close()
	if err := json.NewDecoder(r).Decode(&kept); err != nil {
		return map[string]string{}
	}
	return kept
}

// KeepDigests keeps the digests of the large files that this run read, if the directory for that
// exists.
func (m *Machine) KeepDigests() error {
	d := &m.files.digests
	if d.file == "" {
		return nil
	}
	list := map[string]string{}
	for stamp, c := range d.large() {
		if c.young {
			var err error
			if stamp, c.digest, err = m.files.readAgain(c.path); err != nil {
				continue // it has gone since, or changes just now
			}
		}
		list[stamp] = c.digest
	}
	data, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("cannot keep digests: %w", err)
	}
	if old, err := m.files.Open(d.file); err == nil {
		defer old.Close()
		if before, err := io.ReadAll(old); err == nil && bytes.Equal(before, data) {
			return nil
		}
	}
	return errs.IgnoreNotFound(m.files.Write(d.file, bytes.NewReader(data), provision.Attr{Mode: 0o600}))
}

func (d *digests) large() map[string]content {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := map[string]content{}
	for stamp, c := range d.known {
		if c.size >= keptSize {
			list[stamp] = c
		}
	}
	return list
}

// readAgain reads a file that has settled.
func (f *files) readAgain(path string) (stamp, sum string, err error) {
	info, err := f.Stat(path)
	if err != nil {
		return "", "", err
	}
	if time.Since(changed(info.Stamp)) < settled {
		return "", "", errors.New("it changes")
	}
	sum, err = f.hash(path)
	return info.Stamp, sum, err
}

func (f *files) hash(path string) (string, error) {
	r, err := f.Open(path)
	if err != nil {
		return "", err
	}
	defer r.Close()
	sum, err := digest.SHA256.FromReader(r)
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", path, err)
	}
	return sum.String(), nil
}
