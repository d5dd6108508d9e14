package keep

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"syscall"
	"time"
)

// The ledger is the list of the exits of processes that the keeper has adopted. It is a file of
// records of one size. Each is appended with one write while the process is still a zombie, so
// that a keeper which is killed at any point leaves the status either here or in the zombie. The
// head has the boot id: the ledger is of no use after a reboot.
//
//	head    magic and version (8), boot id (36), pad
//	record  pid 4, flags 4, start 8, time 8, status 4, crc 4
type ledger struct {
	path    string
	bootID  string
	file    *os.File
	entries map[identity]entry
	// order holds the identities oldest first; those no longer in entries are
	// skipped.
	order   []identity
	records int
}

// entry is one exit.
type entry struct {
	status syscall.WaitStatus
	at     time.Time
}

const (
	ledgerMagic  = "berthlg1"
	ledgerHead   = 64
	ledgerRecord = 32
	// ledgerKeep bounds the entries; the oldest go. A supervisor asks for each exit
	// when it sees it, or when it adopts, so an entry matters for seconds.
	ledgerKeep = 8192
	// ledgerSlack is how many dead records the file may have before it is rewritten.
	ledgerSlack = 1024

	flagForgotten = 1
)

// openLedger reads the ledger at path, or makes one. It leaves out damaged records: a damaged
// ledger loses entries, and never stops the keeper.
func openLedger(path, bootID string) (*ledger, error) {
	l := &ledger{path: path, bootID: bootID, entries: map[identity]entry{}}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the ledger: %w", err)
	}
	if len(data) >= ledgerHead && string(data[:ledgerHead]) == string(l.head()) {
		l.load(data[ledgerHead:])
	}
	if err := l.rewrite(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *ledger) head() []byte {
	b := make([]byte, ledgerHead)
	copy(b, ledgerMagic)
	copy(b[len(ledgerMagic):], l.bootID)
	return b
}

func (l *ledger) load(data []byte) {
	for ; len(data) >= ledgerRecord; data = data[ledgerRecord:] {
		id, e, flags, ok := decodeRecord(data[:ledgerRecord])
		switch {
		case !ok:
		case flags&flagForgotten != 0:
			delete(l.entries, id)
		default:
			l.insert(id, e)
		}
	}
}

// add records an exit. lookup finds the entry even when the write failed: the caller reaps in
// any case, since a zombie that stays blocks those behind it.
func (l *ledger) add(id identity, e entry) error {
	l.insert(id, e)
	return l.append(encodeRecord(id, e, 0))
}

func (l *ledger) lookup(id identity) (entry, bool) {
	e, ok := l.entries[id]
	return e, ok
}

// forget removes an entry that its reader no longer needs.
func (l *ledger) forget(id identity) error {
	e, ok := l.entries[id]
	if !ok {
		return nil
	}
	delete(l.entries, id)
	return l.append(encodeRecord(id, e, flagForgotten))
}

func (l *ledger) insert(id identity, e entry) {
	if _, known := l.entries[id]; !known {
		l.order = append(l.order, id)
	}
	l.entries[id] = e
	for len(l.entries) > ledgerKeep {
		delete(l.entries, l.order[0])
		l.order = l.order[1:]
	}
}

func (l *ledger) append(record []byte) error {
	if l.records >= 2*len(l.entries)+ledgerSlack {
		return l.rewrite() // it has the change already
	}
	offset := int64(ledgerHead + l.records*ledgerRecord)
	if _, err := l.file.WriteAt(record, offset); err != nil {
		return fmt.Errorf("cannot write the ledger: %w", err)
	}
	l.records++
	return nil
}

// rewrite replaces the file by one that holds the live entries only.
func (l *ledger) rewrite() (err error) {
	tmp := l.path + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the ledger: %w", err)
	}
	data := l.head()
	order := make([]identity, 0, len(l.entries))
	seen := make(map[identity]bool, len(l.entries))
	for _, id := range l.order {
		if e, ok := l.entries[id]; ok && !seen[id] {
			seen[id] = true
			order = append(order, id)
			data = append(data, encodeRecord(id, e, 0)...)
		}
	}
	_, err = f.Write(data)
	if err == nil {
		err = os.Rename(tmp, l.path)
	}
	if err != nil {
		return fmt.Errorf("cannot write the ledger: %w", errors.Join(err, f.Close()))
	}
	old := l.file
	l.file, l.order, l.records = f, order, len(order)
	if old != nil {
		return old.Close()
	}
	return nil
}

// remove deletes the file, when no entry is needed any more.
func (l *ledger) remove() error {
	return errors.Join(l.file.Close(), os.Remove(l.path))
}

func encodeRecord(id identity, e entry, flags uint32) []byte {
	b := make([]byte, 0, ledgerRecord)
	b = binary.LittleEndian.AppendUint32(b, uint32(id.pid))
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint64(b, id.start)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.at.UnixNano()))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.status))
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func decodeRecord(b []byte) (id identity, e entry, flags uint32, ok bool) {
	if len(b) != ledgerRecord || binary.LittleEndian.Uint32(b[28:]) != crc32.ChecksumIEEE(b[:28]) {
		return identity{}, entry{}, 0, false
	}
	id = identity{int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[8:])}
	e.at = time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:])))
	e.status = syscall.WaitStatus(binary.LittleEndian.Uint32(b[24:]))
	return id, e, binary.LittleEndian.Uint32(b[4:]), true
}
