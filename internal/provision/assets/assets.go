// Package assets fetches what tasks install, checks it by its hash, and keeps it unchanged, by
// hash, for the next apply. It reads archives, and never unpacks them into a directory.
package assets

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
	"github.com/berthrun/berth/internal/provision"
)

// Store is provision.Assets on a machine's file system.
type Store struct {
	files provision.Files
	dir   string

	mu       sync.Mutex
	clients  map[string]*http.Client // by the certificates that they use
	verified map[string]bool         // files that have had the right hash in this process

	fetching keyed.Mutex // one fetch of an asset at a time

	coming coming // the downloads under way
}

// New returns a store that keeps its files in dir. Proxies are those of the environment.
func New(files provision.Files, dir string) *Store {
	return &Store{files: files, dir: dir, clients: map[string]*http.Client{}, verified: map[string]bool{}}
}

// place has the paths of the parts of one asset.
type place struct {
	index string // members as JSON
	file  string // the asset as it came, when it was fetched
}

func (s *Store) place(ref provision.AssetRef) place {
	base := path.Join(s.dir, strings.ReplaceAll(ref.Digest, ":", "-"))
	if ref.Format == "raw" { // not unpacked: other members
		return place{index: base + ".raw.json", file: base}
	}
	return place{index: base + ".json", file: base}
}

// directory returns the source of an asset that is a directory.
func directory(ref provision.AssetRef) (string, bool) {
	for _, source := range ref.Sources {
		if info, err := os.Stat(source); strings.HasPrefix(source, "/") && err == nil && info.IsDir() {
			return source, true
		}
	}
	return "", false
}

// check refuses references that could not be verified.
func check(ref provision.AssetRef) error {
	if len(ref.Sources) == 0 {
		return fmt.Errorf("asset %s has no source: %w", ref.Name, errs.Invalid)
	}
	if ref.Digest == "" {
		return fmt.Errorf("asset %s has no digest, and is not a directory: %w", ref.Name, errs.Invalid)
	}
	if d := digest.Digest(ref.Digest); d.Validate() != nil || d.Algorithm() != digest.SHA256 && d.Algorithm() != digest.SHA512 {
		return fmt.Errorf("digest %q of asset %s is not sha256:… or sha512:…: %w", ref.Digest, ref.Name, errs.Invalid)
	}
	return nil
}

// Members reads the index of an asset that was fetched once, or lists a directory.
func (s *Store) Members(ref provision.AssetRef) ([]provision.Member, error) {
	if dir, ok := directory(ref); ok {
		return listDirectory(dir)
	}
	if err := check(ref); err != nil {
		return nil, err
	}
	r, err := s.files.Open(s.place(ref).index)
	if err != nil {
		return nil, fmt.Errorf("asset %s was not fetched yet: %w", ref.Name, err)
	}
	defer r.Close()
	var list []provision.Member
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return nil, fmt.Errorf("the index of asset %s is damaged, as if it were not there: %w", ref.Name, errs.NotFound)
	}
	if len(list) == 1 && list[0].Single != "" { // indexed, perhaps, when another asset had it
		list[0].Path = singleName(ref, list[0].Single)
	}
	return list, nil
}

// Fetch takes the asset from the cache or from the first source that has it, and reads it once, to
// list its members.
func (s *Store) Fetch(ctx context.Context, ref provision.AssetRef) ([]provision.Member, error) {
	if dir, ok := directory(ref); ok {
		return listDirectory(dir)
	}
	if err := check(ref); err != nil {
		return nil, err
	}
	p := s.place(ref)
	unlock, err := s.fetching.Lock(ctx, p.file)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch asset %s: %w", ref.Name, err)
	}
	defer unlock()
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	// What a killed download left would count as taken, and so could leave too little for the next one.
	if err := s.files.Tidy(p.file); err != nil {
		return nil, fmt.Errorf("cannot fetch asset %s: %w", ref.Name, err)
	}
	file, err := s.obtain(ctx, ref, p)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if list, err := s.Members(ref); err == nil {
		return list, nil
	}
	list, err := index(ctx, ref, file)
	if err != nil {
		return nil, fmt.Errorf("cannot read asset %s: %w", ref.Name, err)
	}
	data, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return list, s.files.Write(p.index, bytes.NewReader(data), provision.Attr{Mode: 0o600})
}

// Read goes through the archive, once in most cases: content that two members share is read once
// for each.
func (s *Store) Read(ctx context.Context, ref provision.AssetRef, members []string, f func(string, io.Reader) error) error {
	if len(members) == 0 {
		return nil
	}
	if dir, ok := directory(ref); ok {
		return readDirectory(dir, members, f)
	}
	list, err := s.Fetch(ctx, ref)
	if err != nil {
		return err
	}
	due := map[string][]string{} // wanted names by the member that holds the content
	for _, name := range members {
		i := slices.IndexFunc(list, func(m provision.Member) bool { return m.Path == name })
		if i < 0 {
			return fmt.Errorf("%s of asset %s: %w", name, ref.Name, errs.NotFound)
		}
		from := cmp.Or(list[i].From, name)
		due[from] = append(due[from], name)
	}
	for len(due) > 0 {
		file, err := s.obtain(ctx, ref, s.place(ref))
		if err != nil {
			return err
		}
		read := 0
		err = walk(ctx, ref, file, func(e entry) error {
			names := due[e.path]
			if e.content == nil || len(names) == 0 {
				return nil
			}
			if due[e.path] = names[1:]; len(names) == 1 {
				delete(due, e.path)
			}
			read++
			return f(names[0], e.content)
		})
		file.Close()
		if err != nil {
			return fmt.Errorf("cannot read asset %s: %w", ref.Name, err)
		}
		if read == 0 {
			return fmt.Errorf("asset %s does not hold what its index says: %w", ref.Name, errs.Invalid)
		}
	}
	return nil
}

func (s *Store) makeDirs() error {
	at := ""
	for part := range strings.SplitSeq(strings.Trim(s.dir, "/"), "/") {
		at += "/" + part
		attr := provision.Attr{Mode: 0o755}
		if at == s.dir {
			attr.Mode = 0o700
		}
		if err := s.files.Mkdir(at, attr); err != nil {
			return err
		}
	}
	return nil
}

// listDirectory lists a source that is a directory.
func listDirectory(dir string) ([]provision.Member, error) {
	var list []provision.Member
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(at) // links count as what they lead to
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		file, err := os.Open(at)
		if err != nil {
			return err
		}
		defer file.Close()
		d256, err := digest.SHA256.FromReader(file)
		list = append(list, provision.Member{Path: name, Digest: d256.String(), Size: info.Size(), Exec: info.Mode()&0o111 != 0})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", dir, err)
	}
	return list, nil
}

func readDirectory(dir string, members []string, f func(string, io.Reader) error) error {
	for _, name := range members {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%s leads out of %s: %w", name, dir, errs.Invalid)
		}
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		err = f(name, file)
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
