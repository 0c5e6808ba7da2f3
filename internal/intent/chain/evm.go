package chain

import (
	"errors"
	"hash"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/crypto/sha3"
)

var (
	errEVMReference = errors.New("must be evm: and a decimal chain id from 1 to 2^63-1 without a leading zero")
	errEVMAddress   = errors.New("must be 0x and 40 hex digits")
	errEVMChecksum  = errors.New("has a wrong EIP-55 checksum")
	errEVMZero      = errors.New("must not be the zero address")
	errEVMTxHash    = errors.New("must be 0x and 64 hex digits")
)

// evmReference takes the one spelling of a chain id, so that one chain has one
// name.
func evmReference(s string) error {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != s {
		return errEVMReference
	}
	return nil
}

func evmAddress(s string) (string, error) {
	digits, ok := evmHex(s, 40)
	if !ok {
		return "", errEVMAddress
	}
	if strings.Trim(digits, "0") == "" {
		return "", errEVMZero
	}
	address := evmChecksum(digits)
	mixed := strings.ContainsAny(digits, "abcdef") && strings.ContainsAny(digits, "ABCDEF")
	if mixed && digits != address[2:] {
		return "", errEVMChecksum
	}
	return address, nil
}

func evmTxHash(s string) (string, error) {
	digits, ok := evmHex(s, 64)
	if !ok {
		return "", errEVMTxHash
	}
	return "0x" + strings.ToLower(digits), nil
}

// evmHex returns the n hex digits that follow 0x, if s is nothing but that.
func evmHex(s string, n int) (string, bool) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || len(digits) != n {
		return "", false
	}
	return digits, strings.Trim(digits, "0123456789abcdefABCDEF") == ""
}

// evmChecksum spells an address as EIP-55 says
// (https://eips.ethereum.org/EIPS/eip-55), whatever the case of its digits: a
// letter is a capital where the Keccak-256 hash of the lower-case digits' ASCII
// has a nibble of 8 or more at its place. Keccak-256 is not SHA3-256: it was
// fixed before the standard changed the padding.
func evmChecksum(digits string) string {
	k := keccaks.Get().(*keccak)
	defer keccaks.Put(k)
	address := append(k.address[:0], "0x"...)
	address = append(address, digits...)
	for i, c := range address[2:] {
		if c >= 'A' && c <= 'F' {
			address[2+i] = c - 'A' + 'a'
		}
	}
	k.Reset()
	k.Write(address[2:])
	sum := k.Sum(k.sum[:0])
	for i, c := range address[2:] {
		nibble := sum[i/2] >> (4 * (1 - i%2)) & 0xf
		if c >= 'a' && nibble >= 8 {
			address[2+i] = c - 'a' + 'A'
		}
	}
	return string(address)
}

// keccak is a hash and room for what goes in and comes out.
type keccak struct {
	hash.Hash
	address [42]byte
	sum     [32]byte
}

// keccaks are there to be used again: each create checks three addresses.
var keccaks = sync.Pool{New: func() any { return &keccak{Hash: sha3.NewLegacyKeccak256()} }}
