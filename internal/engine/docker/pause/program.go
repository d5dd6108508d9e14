package pause

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
)

// instruction is one instruction of the program, and the same in the assembler's words.
type instruction struct {
	code []byte
	text string
}

// program returns the executable of an architecture: an ELF file of two headers and the code.
// It needs no library, no stack of its own, no file and no privilege.
func program(architecture string) ([]byte, error) {
	switch architecture {
	case "amd64":
		return link(elf.EM_X86_64, amd64()), nil
	case "arm64":
		return link(elf.EM_AARCH64, arm64()), nil
	}
	return nil, fmt.Errorf("there is no pause program for %s: %w", architecture, errs.Unsupported)
}

// link writes the executable.
func link(machine elf.Machine, code []instruction) []byte {
	const (
		headerSize, segmentSize = 64, 56
		codeAt                  = headerSize + 2*segmentSize
		address                 = 0x400000
		// pages is the largest page of these architectures.
		pages = 0x10000
	)
	text := assemble(code)
	size := uint64(codeAt + len(text))
	header := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: address + codeAt, Phoff: headerSize, Ehsize: headerSize,
		Phentsize: segmentSize, Phnum: 2, Shentsize: 64,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	header.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	segments := [2]elf.Prog64{
		// The whole file, which nothing can write to.
		{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: address, Paddr: address,
			Filesz: size, Memsz: size, Align: pages,
		},
		// Without this segment the kernel makes the stack executable.
		{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	}
	file := make([]byte, 0, size)
	for _, part := range []any{header, segments} {
		file, _ = binary.Append(file, binary.LittleEndian, part) // fails for types without a size
	}
	return append(file, text...)
}

// assemble returns the code of all instructions.
func assemble(code []instruction) []byte {
	var all bytes.Buffer
	for _, i := range code {
		all.Write(i.code)
	}
	return all.Bytes()
}
