// Package chain knows which chains a payment can be settled on, and what an
// address and a transaction hash look like on each of them.
//
// Every error of this package is the text of a rule, made to stand behind the
// name of the member that broke it: "token " + err.Error() is a sentence. None
// repeats what was given, which may be of any size.
package chain

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

var (
	errShape     = errors.New("must be namespace:reference, such as evm:31337")
	errNamespace = errors.New("has an unknown namespace, known is evm")
)

// namespace is what the chains of one family have in common.
type namespace struct {
	reference func(s string) error
	address   func(s string) (string, error)
	txHash    func(s string) (string, error)
}

// namespaces is the whole list: a new family is a line here and a file beside
// evm.go.
var namespaces = map[string]*namespace{
	"evm": {reference: evmReference, address: evmAddress, txHash: evmTxHash},
}

// Chain is one chain, such as evm:31337. Chains are compared with ==. Only
// Parse makes a useful one; the methods of a zero Chain panic.
type Chain struct {
	name string
	ns   *namespace
}

// Parse reads a chain's name, namespace:reference. The reference of evm is the
// chain id of EIP-155 in decimal, 1 to 2^63-1, without a leading zero. A
// namespace that is not known is refused, since nothing could be said about
// its addresses.
func Parse(s string) (Chain, error) {
	name, reference, ok := strings.Cut(s, ":")
	if !ok {
		return Chain{}, errShape
	}
	ns, ok := namespaces[name]
	if !ok {
		return Chain{}, errNamespace
	}
	if err := ns.reference(reference); err != nil {
		return Chain{}, err
	}
	return Chain{name: s, ns: ns}, nil
}

// String returns the name that Parse was given.
func (c Chain) String() string {
	return c.name
}

// Address checks an address of this chain and returns its one canonical
// spelling, so that equal addresses are equal strings. For evm that is the
// mixed-case form of EIP-55; all-lower and all-upper digits are taken as they
// carry no checksum, mixed ones must carry the right one. The zero address,
// which nobody can be paid at, is refused.
func (c Chain) Address(s string) (string, error) {
	return c.ns.address(s)
}

// TxHash checks a transaction hash of this chain and returns its one canonical
// spelling. For evm that is 0x and 64 lower-case hex digits.
func (c Chain) TxHash(s string) (string, error) {
	return c.ns.txHash(s)
}

// AnyTxHash is TxHash where the chain is not known: it takes the hash of any chain
// that there is, and otherwise says what one of those must look like.
func AnyTxHash(s string) (hash string, err error) {
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		if hash, err = namespaces[name].txHash(s); err == nil {
			return hash, nil
		}
	}
	return "", err
}
