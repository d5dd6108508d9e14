package hostpath

import (
	"path/filepath"
	"sync"
)

// Claims are the directories that are made for containers of an engine whose creation goes on. A directory that another
// container has begun to use meanwhile is not removed when the creation fails. The zero value has none.
type Claims struct {
	mu sync.Mutex
	// byDir has the claims by directory, dirs the directories by record (Made.File).
	byDir map[string]*claim
	dirs  map[string][]string
}

// claim is that of a directory.
type claim struct {
	// records are those of the containers that it is made for.
	records map[string]bool
	// shared is true once more than one container uses it.
	shared bool
}

// add claims directories for the container of a record.
func (c *Claims) add(record string, dirs []string) {
	if len(dirs) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byDir == nil {
		c.byDir, c.dirs = map[string]*claim{}, map[string][]string{}
	}
	for _, dir := range dirs {
		of := c.byDir[dir]
		if of == nil {
			of = &claim{records: map[string]bool{}}
			c.byDir[dir] = of
		}
		of.records[record] = true
		of.shared = of.shared || len(of.records) > 1
	}
	c.dirs[record] = append(c.dirs[record], dirs...)
}

// use notes that a container uses a path, and so all directories above it. record is its own, "" as long as nothing
// is made for it.
func (c *Claims) use(record, path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := path; at != "/" && at != "."; at = filepath.Dir(at) {
		if of := c.byDir[at]; of != nil && !of.records[record] {
			of.shared = true
		}
	}
}

// isShared reports whether another container uses a directory that was made for one.
func (c *Claims) isShared(dir string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.byDir[dir]
	return of != nil && of.shared
}

// end ends the claims for the container of a record.
func (c *Claims) end(record string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, dir := range c.dirs[record] {
		if of := c.byDir[dir]; of != nil {
			if delete(of.records, record); len(of.records) == 0 {
				delete(c.byDir, dir)
			}
		}
	}
	delete(c.dirs, record)
}
