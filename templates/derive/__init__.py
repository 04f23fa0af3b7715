"""From a function in PyTorch to an operator: `new_op.py --from file.py:function`.

In the order in which a definition goes through them, each module above those before it:

    refusal.py        why something is not derived
    graph.py          expressions of one element, and arithmetic that simplifies them
    operations.py     what expressions are made of: in C++, in Python, and the derivative of each
    vocabulary.py     functions of torch as expressions
    definition.py     the function: its file, its signature, its source
    trace.py          what it computes, as an expression
    differentiate.py  the gradients
    saved.py          what the backward keeps of the forward
    printing.py       expressions as statements; cpp_text.py and python_text.py in either language
    verify.py         all of it against the definition and PyTorch's derivatives
    assemble.py       the operator's files
"""
