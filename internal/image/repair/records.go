package repair

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/dbcheck"
	"github.com/berthrun/berth/internal/image/names"
)

// LostRecords compares the records of images with the copy of their names. It returns an error (IsDamage) if the database has no
// image and the copy has some, since a new database has replaced the old one, or if a changed bit in the database has taken or
// changed a record. A daemon that was killed leaves other differences: names are added to the database first, and
// removed from the copy first.
func (r Repairer) LostRecords(ctx context.Context, db *database.DB) error {
	ctx = database.WithNamespace(ctx)
	records, err := db.Images.List(ctx)
	if err != nil {
		return err
	}
	copied, summed, err := db.ReadNames()
	if err != nil || len(copied) == 0 {
		return nil //nolint:nilerr // without a copy, nothing can be compared
	}
	if len(records) == 0 {
		return fmt.Errorf("%s knows no image, and there are %d: %w", r.Paths.MetadataFile(), len(copied), dbcheck.ErrDamaged)
	}
	if !summed {
		return nil // the copy may be damaged itself
	}
	byName := map[string]images.Image{}
	for _, record := range records {
		byName[record.Name] = record
	}
	for _, named := range copied {
		record, ok := byName[named.Name]
		problem, err := lostRecord(ctx, db, named, record, ok)
		if err != nil {
			return err
		}
		if problem != "" {
			return fmt.Errorf("%s %s: %w", r.Paths.MetadataFile(), problem, dbcheck.ErrDamaged)
		}
	}
	return nil
}

// lostRecord says what the database has lost of an image, "" for nothing.
func lostRecord(ctx context.Context, db *database.DB, named database.NamedImage, record images.Image, recorded bool) (string, error) {
	if !recorded {
		there, err := hasBlob(ctx, db, named.Target.Digest)
		if err != nil || !there {
			return "", err
		}
		return fmt.Sprintf("does not have the name %s, whose manifest is there", named.Name), nil
	}
	switch is, was := record.Target, named.Target; {
	case is.Digest != was.Digest: // a pull that was cut short may have moved the name
		there, err := hasBlob(ctx, db, is.Digest)
		if err != nil || there {
			return "", err
		}
		return fmt.Sprintf("has the name %s for %s, which is not there", named.Name, is.Digest), nil
	case is.Size != was.Size, images.IsIndexType(is.MediaType) != images.IsIndexType(was.MediaType), images.IsManifestType(is.MediaType) != images.IsManifestType(was.MediaType):
		return fmt.Sprintf("has the name %s for %d bytes of %s, and it is %d bytes of %s", named.Name, is.Size, is.MediaType, was.Size, was.MediaType), nil
	case !names.IsID(named.Name) && database.PlatformIn(record) != named.Platform: // an id may be of several
		return fmt.Sprintf("has the platform %q for %s, and it is for %q", database.PlatformIn(record), named.Name, named.Platform), nil
	case named.Pinned && !database.IsPinned(record):
		return fmt.Sprintf("does not know that %s is pinned", named.Name), nil
	}
	return "", nil
}

func hasBlob(ctx context.Context, db *database.DB, blob digest.Digest) (bool, error) {
	_, err := db.Content.Info(ctx, blob)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
