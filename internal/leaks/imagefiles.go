package leaks

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The databases of the image store are files of bbolt, whose first two pages have a magic number each. The pages have the
// size of the machine's that made the file.
const (
	boltMagic   = 0xED0CDAED
	boltMagicAt = 16
)

// examineImageFiles finds what the next start of berth moves to the quarantine of the image store: damaged databases, and
// what is in the place of its directories. It also finds images that are lost, and archives that berth
// cannot import.
func examineImageFiles(_ context.Context, f *Facts, r *doctor.Report) error {
	if !f.Native {
		return nil
	}
	images := filepath.Join(f.Root, "images")
	_, noContent := os.Lstat(filepath.Join(images, "content"))
	_, noDatabase := os.Lstat(filepath.Join(images, "metadata.db"))
	if errors.Is(noContent, fs.ErrNotExist) && errors.Is(noDatabase, fs.ErrNotExist) {
		return nil // no berth has opened a store here
	}
	for _, name := range []string{"content", "snapshots", "containers"} {
		dir := filepath.Join(images, name)
		info, err := os.Lstat(dir)
		if err = errs.IgnoreNotExist(err); err != nil {
			return fmt.Errorf("cannot read the image store: %w", err)
		}
		if info != nil && !info.IsDir() {
			r.Add(finding.Problem, dir, fmt.Sprintf("%s is no directory (%s): berth follows no link there, its next start moves it to the quarantine, and its images are lost", dir, info.Mode().Type()),
				"put the directory back; to have images on another disk, set root in berth.toml, or mount the disk at "+dir)
		}
	}
	for _, name := range []string{"metadata.db", "snapshots/metadata.db"} {
		file := filepath.Join(images, name)
		why, err := boltFault(file)
		if err != nil {
			return err
		}
		if why != "" {
			r.Add(finding.Warning, file, fmt.Sprintf("the image store's database %s %s: the next start of berth moves both databases to the quarantine, and makes them again from the files beside them", file, why),
				"restart berth; its log names the images that are lost, which are pulled again; then `berth image fsck --repair`")
		}
	}
	if err := examineLost(images, r); err != nil {
		return err
	}
	return examineImports(images, r)
}

// lostImage is what the check needs of an image on the list of lost ones.
type lostImage struct {
	// Names are its tags and its names with a digest; a platform may follow a name.
	Names []string
	// NoPull is set if the daemon does not pull it again.
	NoPull bool
}

// called are its tags, or its names with a digest if it has no tag.
func (l lostImage) called() string {
	var tags, digests []string
	for _, key := range l.Names {
		name, _, _ := strings.Cut(key, "#")
		if strings.Contains(name, "@") {
			digests = append(digests, name)
		} else {
			tags = append(tags, name)
		}
	}
	if len(tags) == 0 {
		tags = digests
	}
	return strings.Join(tags, " ")
}

// examineLost finds images that starts of berth have lost and that are not back. A list that cannot be read is no fault: the
// daemon writes it again.
func examineLost(images string, r *doctor.Report) error {
	var list struct {
		Images []lostImage
	}
	data, err := sysfile.ReadRegular(filepath.Join(images, "lost.json"), 16<<20)
	if errors.Is(err, errs.NotFound) || err == nil && json.Unmarshal(data, &list) != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the list of lost images: %w", err)
	}
	for _, gone := range list.Images {
		called := gone.called()
		if gone.NoPull {
			r.Add(finding.Problem, called, fmt.Sprintf("the image store has lost image %s: its content was damaged or missing when berth started", called),
				"pull it, import its archive, put the archive into a directory of image.import_dirs, or remove its names: `berth image rm "+called+"`")
			continue
		}
		r.Add(finding.Warning, called, fmt.Sprintf("the image store has lost image %s: its content was damaged or missing when berth started; berth pulls it again in the background", called),
			"see `berth jobs`; pull it with its credentials, or remove its names: `berth image rm "+called+"`")
	}
	return nil
}

// imported is what the check needs of the list of imported archives.
type imported struct {
	Archives []struct {
		Path  string
		Size  int64
		Time  int64
		Error string
	}
}

// examineImports finds archives of image.import_dirs that the daemon cannot import, and that have not changed since. A list that
// cannot be read is no fault: the daemon writes it again.
func examineImports(images string, r *doctor.Report) error {
	var list imported
	data, err := sysfile.ReadRegular(filepath.Join(images, "imported.json"), 16<<20)
	if errors.Is(err, errs.NotFound) || err == nil && json.Unmarshal(data, &list) != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the list of imported archives: %w", err)
	}
	for _, one := range list.Archives {
		if one.Error == "" {
			continue
		}
		if info, err := os.Stat(one.Path); err != nil || info.Size() != one.Size || info.ModTime().UnixNano() != one.Time {
			continue // berth reads it again
		}
		r.Add(finding.Warning, one.Path, fmt.Sprintf("the archive %s of image.import_dirs is not imported: %s", one.Path, one.Error),
			"put a correct archive in its place, which berth imports, or remove it")
	}
	return nil
}

// boltFault is why a file is no database, "" if it looks like one.
func boltFault(file string) (string, error) {
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is missing", nil
	case err != nil:
		return "", fmt.Errorf("cannot read a database of the image store: %w", err)
	case !info.Mode().IsRegular():
		return "is no regular file", nil
	case info.Size() == 0:
		return "is empty", nil
	}
	open, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("cannot read a database of the image store: %w", err)
	}
	defer open.Close()
	for _, page := range []int64{0, 4 << 10, 16 << 10, 64 << 10} {
		var magic [4]byte
		if _, err := open.ReadAt(magic[:], page+boltMagicAt); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "cannot be read (" + errs.Message(err) + ")", nil
		}
		if binary.NativeEndian.Uint32(magic[:]) == boltMagic {
			return "", nil
		}
	}
	return "is damaged: its first pages are not those of a database", nil
}
