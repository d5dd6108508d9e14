package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// record says what a log contains. It is stored after each write to the log, so a killed
// process leaves a record that is correct, or older than the log by one write. Recovery reads
// what the log has behind Offset.
type record struct {
	Version int `json:"version"`
	// Log is the file that Offset is about. Offset is the end of its last whole line.
	Log    sysfile.FileID `json:"log"`
	Offset int64          `json:"offset"`
	// Written is all that is in this file and in those before it.
	Written progress `json:"written"`
}

const recordVersion = 1

// recordSize is the constant size of the file. It is stored by one write within a page, which
// the kernel does not interrupt: a kill leaves the old content or the new one.
const recordSize = 1024

func recordPath(dir string) string { return filepath.Join(dir, "log.json") }

// readRecord reads a record. NotFound if there is none, State if it is damaged.
func readRecord(path string) (*record, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || (err == nil && len(raw) == 0) {
		return nil, fmt.Errorf("log record %s: %w", path, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read a log record: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("log record %s is damaged: %w: %w", path, err, errs.State)
	}
	if r.Version != recordVersion || r.Offset < 0 {
		return nil, fmt.Errorf("log record %s has version %d and offset %d: %w", path, r.Version, r.Offset, errs.State)
	}
	return r, nil
}

// write stores the record.
func (r *record) write(path string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write a log record: %w", err)
	}
	raw = append(raw, bytes.Repeat([]byte(" "), recordSize-len(raw))...)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write a log record: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteAt(raw, 0); err != nil {
		return fmt.Errorf("cannot write a log record: %w", errs.OfDisk(err))
	}
	return nil
}
