"""From a function in PyTorch to an operator: `new_op.py --from file.py:function`.

In the order in which a definition goes through them; each imports of those above it alone:

    refusal.py         why something is not derived
    graph.py           expressions of one element, and arithmetic that simplifies them
    operations.py      what expressions are made of: in C++, in Python, and the derivative of each
    rows_operations.py those on whole rows
    work.py            how many instructions a formula takes
    vocabulary.py      functions of torch as expressions
    rows_vocabulary.py those over the last dimension
    rounding.py        what rounding an operand makes of an expression
    saved.py           what the backward keeps of the forward
    in_place.py        a function that writes to its arguments
    definition.py      the function: its file, its signature, its source
    trace.py           what it computes, as an expression
    packed.py          the same of tensors that hold several
    differentiate.py   the gradients
    body.py            several formulas, of which switches choose one
    variant.py         those where some of the optional tensors are given
    row_integers.py    what integers with a value for each row say of its columns
    statistics.py      what the forward finds of each row and the backward is given
    derived.py         all formulas of an operator
    results.py         which of several results the backward is given
    parts.py           a definition as one of the parts of its tensors
    printing.py        expressions as statements, in cpp_text.py and python_text.py
    verify.py          the formulas against the definition and PyTorch's derivatives
    plan.py            the operators, and how their arguments are called
    packed_plan.py     the same where tensors hold several
    of_numbers.py      what the host computes, of numbers alone
    elements_text.py   functors for elements
    packed_file.py     functors and functions of parts
    packed_words.py    what is said of them
    rows_text.py       functors for rows, whose passes follow from the expressions
    rows_file.py, cpp_file.py, ops_file.py, spec_file.py
    assemble.py        the operator's files
    as_schema.py       those of a template, of which the definition is schema and reference alone
"""
